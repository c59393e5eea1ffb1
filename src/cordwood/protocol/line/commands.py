"""The commands of the control listener: one table from name to parser, usage and meaning.

The table serves the parser, ``HELP`` and ``docs/protocols-line.md``. A request is a frozen value.
Input that does not parse raises a ``RequestError`` that shows the usage. Nothing here knows whether
a topic exists; the broker checks that.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from cordwood.errors import InvalidTopic, RequestError, UnknownCommand
from cordwood.model import is_topic_name

SEQ_MAX: Final = 2**63 - 1
READER_BYTES_MAX: Final = 249


class StartPosition(Enum):
    """A position in a log that needs no number."""

    START = "START"  # the oldest record that still exists
    END = "END"  # after the newest record
    CURSOR = "CURSOR"  # the cursor of the named reader; without a name, the end


@dataclass(frozen=True, slots=True)
class GetAck:
    """Ask for the last durable seq of a topic; None is the ingress topic."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Ask for the state of a record; None is the ingress topic."""

    seq: int
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Stream a topic's records; a number is the first seq to send."""

    topic: str
    start: int | StartPosition = StartPosition.CURSOR
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The reader has processed everything up to and including this seq."""

    topic: str
    reader: str
    seq: int


@dataclass(frozen=True, slots=True)
class Register:
    """Create the topic if it is missing and, with a name, register a reader on it."""

    topic: str
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Append one record; the payload is stored byte for byte."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Take the reader's next record; without a name, the shared default reader's."""

    topic: str
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Describe a topic and its segments."""

    topic: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """Ask for the broker's counters."""


@dataclass(frozen=True, slots=True)
class Readers:
    """List the registered readers and their cursors; None is every topic."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Move a reader's cursor forward or back; a number is the next seq it will read."""

    topic: str
    reader: str
    to: int | StartPosition


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a reader; RECLAIM no longer waits for it."""

    topic: str
    reader: str


@dataclass(frozen=True, slots=True)
class Configure:
    """Change settings of a topic, all or none; values are written as in Kafka's tools."""

    topic: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Seal the topic's active segment now."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Delete the sealed segments that RECLAIM allows now; None is every topic."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Help:
    """List the commands."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Reply OK and close."""


Request = (
    GetAck
    | GetStatus
    | Subscribe
    | Ack
    | Register
    | Put
    | Get
    | State
    | Metrics
    | Readers
    | Reset
    | Remove
    | Configure
    | Cut
    | Reclaim
    | Help
    | Quit
)


class Command(NamedTuple):
    """A row of the command table."""

    usage: str
    reply: str
    summary: str
    parse: Callable[[bytes], Request]


class _Misuse(Exception):
    """The arguments of a command are wrong; ``parse_command`` adds the usage."""


def parse_command(body: bytes) -> Request:
    """Parse one command without its newline or length; raise ``RequestError`` if it is invalid."""
    name, rest = [*body.split(None, 1), b"", b""][:2]
    word = _shown(name.upper())
    if word not in COMMANDS:
        raise UnknownCommand(_unknown(word))
    try:
        return COMMANDS[word].parse(rest)
    except _Misuse as error:
        raise RequestError(f"{error}; send {COMMANDS[word].usage}") from None


def encode_command(request: Request) -> bytes:
    """Encode a request for the client; raise ``RequestError`` for names that no broker accepts."""
    body = _encode_words(request)
    if isinstance(request, Put):
        body += b" " + request.payload
    if parse_command(body) != request:
        raise RequestError("a name in the request is not one word of UTF-8; check its names")
    return body


def encode_help() -> bytes:
    """Format the table; it ends with an empty line, because it is the only multi-line reply."""
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [
        f"{command.usage:<{width}}  {command.summary} -> {command.reply}"
        for command in COMMANDS.values()
    ]
    return "\n".join([*rows, ""]).encode()


def _encode_words(request: Request) -> bytes:
    words: list[str | int | None]
    match request:
        case GetAck(topic):
            words = ["GET_ACK", topic]
        case GetStatus(seq, topic):
            words = ["GET_STATUS", seq, topic]
        case Subscribe(topic, start, reader):
            words = ["SUBSCRIBE", topic, *_encode_start(start), *_encode_as(reader)]
        case Register(topic, reader):
            words = ["REGISTER", topic, *_encode_as(reader)]
        case Get(topic, reader):
            words = ["GET", topic, *_encode_as(reader)]
        case Ack(topic, reader, seq):
            words = ["ACK", topic, reader, seq]
        case Reset(topic, reader, to):
            words = ["RESET", topic, reader, to.value if isinstance(to, StartPosition) else to]
        case Remove(topic, reader):
            words = ["REMOVE", topic, reader]
        case Configure(topic, settings):
            words = ["CONFIGURE", topic, *(f"{name}={value}" for name, value in settings)]
        case Put(topic) | State(topic) | Readers(topic) | Cut(topic) | Reclaim(topic):
            words = [type(request).__name__.upper(), topic]
        case Metrics() | Help() | Quit():
            words = [type(request).__name__.upper()]
    return " ".join(str(word) for word in words if word is not None).encode("utf-8", "replace")


def _encode_start(start: int | StartPosition) -> list[str | int | None]:
    if isinstance(start, int):
        return ["FROM", start]
    return ["FROM_START"] if start is StartPosition.START else []


def _encode_as(reader: str | None) -> list[str | int | None]:
    return [] if reader is None else ["AS", reader]


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"'{word}' is not a command; {hint}HELP lists them"


def _shown(word: bytes | str) -> str:
    """Quote a word from a peer in a reply: shortened, and always ASCII."""
    raw = word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 0x20 < b < 0x7F else f"\\x{b:02x}" for b in raw[:64])


def _parse_put(rest: bytes) -> Put:
    """Not split into words like the others: one space, then the payload up to the end."""
    topic, space, payload = rest.partition(b" ")
    if not space:
        raise _Misuse("a topic, one space and a payload must follow")
    return Put(_topic(topic.decode("utf-8", "surrogateescape")), payload)


def _by_words(parse: Callable[[Sequence[str]], Request]) -> Callable[[bytes], Request]:
    """Split the arguments at white space; bytes that are not UTF-8 are escaped, not lost."""
    return lambda rest: parse(rest.decode("utf-8", "surrogateescape").split())


def _topic(word: str) -> str:
    if not is_topic_name(word):
        raise InvalidTopic(
            f"'{_shown(word)}' cannot name a topic; use 1 to 249 of A-Z a-z 0-9 . _ - (not . or ..)"
        )
    return word


def _reader(word: str) -> str:
    if not word.isprintable() or len(word.encode("utf-8", "replace")) > READER_BYTES_MAX:
        raise _Misuse(
            f"a reader's name is printable UTF-8 without spaces, up to {READER_BYTES_MAX} bytes"
        )
    return word


def _seq(word: str, low: int) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19 and low <= int(word) <= SEQ_MAX):
        raise _Misuse(f"'{_shown(word)}' is not a seq, a whole number from {low}")
    return int(word)


def _place(word: str) -> int | StartPosition:
    if word.upper() in {"START", "END"}:
        return StartPosition(word.upper())
    return _seq(word, low=1)


def _count(words: Sequence[str], low: int, high: int) -> None:
    if not low <= len(words) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise _Misuse(f"{len(words)} words follow the command and {wanted} can")


def _optional_topic(words: Sequence[str]) -> str | None:
    _count(words, 0, 1)
    return _topic(words[0]) if words else None


def _one_topic(words: Sequence[str]) -> str:
    _count(words, 1, 1)
    return _topic(words[0])


def _topic_as(words: Sequence[str]) -> tuple[str, str | None]:
    """``<topic> [AS <reader>]``."""
    _count(words, 1, 3)
    topic = _topic(words[0])
    if len(words) == 1:
        return topic, None
    if len(words) == 2 or words[1].upper() != "AS":
        raise _Misuse("after the topic only AS and a reader's name can follow")
    return topic, _reader(words[2])


def _parse_status(words: Sequence[str]) -> GetStatus:
    _count(words, 1, 2)
    return GetStatus(_seq(words[0], low=1), _optional_topic(words[1:]))


def _parse_subscribe(words: Sequence[str]) -> Subscribe:
    """``FROM_START`` or ``FROM <seq>`` may follow the topic, then ``AS <reader>``."""
    _count(words, 1, 5)
    _topic(words[0])
    start: int | StartPosition = StartPosition.CURSOR
    rest = list(words[1:])
    if rest and rest[0].upper() == "FROM_START":
        start, rest = StartPosition.START, rest[1:]
    elif rest and rest[0].upper() == "FROM":
        if len(rest) == 1:
            raise _Misuse("FROM needs a seq")
        start, rest = _seq(rest[1], low=1), rest[2:]
    topic, reader = _topic_as([words[0], *rest])
    return Subscribe(topic, start, reader)


def _parse_ack(words: Sequence[str]) -> Ack:
    _count(words, 3, 3)
    return Ack(_topic(words[0]), _reader(words[1]), _seq(words[2], low=0))


def _parse_reset(words: Sequence[str]) -> Reset:
    _count(words, 3, 3)
    return Reset(_topic(words[0]), _reader(words[1]), _place(words[2]))


def _parse_remove(words: Sequence[str]) -> Remove:
    _count(words, 2, 2)
    return Remove(_topic(words[0]), _reader(words[1]))


def _parse_configure(words: Sequence[str]) -> Configure:
    """``<topic>``, then ``<name>=<value>`` once or more."""
    if len(words) < 2:
        raise _Misuse("a topic and at least one setting must follow")
    settings = []
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise _Misuse(f"'{_shown(word)}' is not a setting, <name>=<value>")
        settings.append((name, value))
    return Configure(_topic(words[0]), tuple(settings))


def _alone(request: Request) -> Callable[[Sequence[str]], Request]:
    def parse(words: Sequence[str]) -> Request:
        _count(words, 0, 0)
        return request

    return parse


COMMANDS: Final[dict[str, Command]] = {
    "GET_ACK": Command(
        "GET_ACK [<topic>]",
        "ACK <seq>",
        "the last durable seq; 0 when there is none",
        _by_words(lambda words: GetAck(_optional_topic(words))),
    ),
    "GET_STATUS": Command(
        "GET_STATUS <seq> [<topic>]",
        "PENDING | PROCESSED | ARCHIVED <bundle> | UNKNOWN",
        "what became of a record",
        _by_words(_parse_status),
    ),
    "SUBSCRIBE": Command(
        "SUBSCRIBE <topic> [FROM_START | FROM <seq>] [AS <reader>]",
        "seq|broker_ts|routing_key|producer_ts|n|payload ...",
        "stream records; without FROM, the reader's cursor or else new records",
        _by_words(_parse_subscribe),
    ),
    "ACK": Command(
        "ACK <topic> <reader> <seq>",
        "OK",
        "the reader is done with all up to seq",
        _by_words(_parse_ack),
    ),
    "REGISTER": Command(
        "REGISTER <topic> [AS <reader>]",
        "OK",
        "make the topic, and the reader that holds its records",
        _by_words(lambda words: Register(*_topic_as(words))),
    ),
    "PUT": Command(
        "PUT <topic> <payload>",
        "OK",
        "append one record, durable before the reply",
        _parse_put,
    ),
    "GET": Command(
        "GET <topic> [AS <reader>]",
        "OK <payload> | EMPTY",
        "take the reader's next record",
        _by_words(lambda words: Get(*_topic_as(words))),
    ),
    "STATE": Command(
        "STATE <topic>",
        "JSON",
        "the topic's segments",
        _by_words(lambda words: State(_one_topic(words))),
    ),
    "METRICS": Command("METRICS", "JSON", "the broker's counters", _by_words(_alone(Metrics()))),
    "READERS": Command(
        "READERS [<topic>]",
        "JSON",
        "registered readers and their cursors",
        _by_words(lambda words: Readers(_optional_topic(words))),
    ),
    "RESET": Command(
        "RESET <topic> <reader> <seq> | START | END",
        "OK",
        "the next record the reader gets",
        _by_words(_parse_reset),
    ),
    "REMOVE": Command("REMOVE <topic> <reader>", "OK", "forget a reader", _by_words(_parse_remove)),
    "CONFIGURE": Command(
        "CONFIGURE <topic> <name>=<value> ...",
        "OK",
        "change a topic's settings, all or none",
        _by_words(_parse_configure),
    ),
    "CUT": Command(
        "CUT <topic>",
        "OK <segments sealed>",
        "seal the active segment now",
        _by_words(lambda words: Cut(_one_topic(words))),
    ),
    "RECLAIM": Command(
        "RECLAIM [<topic>]",
        "OK <segments dropped>",
        "drop what may go now",
        _by_words(lambda words: Reclaim(_optional_topic(words))),
    ),
    "HELP": Command("HELP", "lines, then an empty one", "this list", _by_words(_alone(Help()))),
    "QUIT": Command("QUIT", "OK", "close the connection", _by_words(_alone(Quit()))),
}
