"""The commands of the control listener: one table from name to arguments, usage and meaning.

The table serves broker and client, ``HELP`` and ``docs/protocols-line.md``. A request is a frozen
value. Input that does not parse raises a ``RequestError`` that shows the usage. Nothing here knows
whether a topic exists; the broker checks that.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from cordwood.errors import InvalidTopic, RequestError, UnknownCommand
from cordwood.model import is_topic_name

SEQ_MAX: Final = 2**63 - 1
READER_BYTES_MAX: Final = 249
MANY: Final = 2**31  # words; more than a message can have


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


class _Misuse(Exception):
    """The arguments of a command are wrong; ``parse_command`` adds the usage."""


class _Argument(NamedTuple):
    """An argument of commands: how many words it takes, and how they become a value and back."""

    usage: str
    words_min: int
    words_max: int
    parse: Callable[[list[str]], object]  # takes its words from the front
    encode: Callable[[Any], Sequence[object]]


class Command(NamedTuple):
    """A row of the command table."""

    name: str
    reply: str
    summary: str
    request: Callable[..., Request]
    arguments: tuple[_Argument, ...] = ()  # of ``request``, in its order

    @property
    def usage(self) -> str:
        """How to write the command, such as ``GET_ACK [<topic>]``."""
        return " ".join([self.name, *(argument.usage for argument in self.arguments)])


def parse_command(body: bytes) -> Request:
    """Parse one command without its newline or length; raise ``RequestError`` if it is invalid."""
    name, rest = [*body.split(None, 1), b"", b""][:2]
    word = _shown(name.upper())
    if word not in COMMANDS:
        raise UnknownCommand(_unknown(word))
    command = COMMANDS[word]
    try:
        return _parse_put(rest) if command.request is Put else _parse_words(command, rest)
    except _Misuse as error:
        raise RequestError(f"{error}; send {command.usage}") from None


def encode_command(request: Request) -> bytes:
    """Encode a request for the client; raise ``RequestError`` for names that no broker accepts."""
    command = next(row for row in COMMANDS.values() if row.request is type(request))
    words = [command.name]
    for argument, field in zip(command.arguments, request.__match_args__, strict=True):
        words += map(str, argument.encode(getattr(request, field)))
    body = " ".join(words).encode("utf-8", "replace")
    if isinstance(request, Put):
        body += b" " + request.payload
    if parse_command(body) != request:
        raise RequestError("a name in the request is not a single word of UTF-8")
    return body


def encode_help() -> bytes:
    """Format the table; it ends with an empty line, because it is the only multi-line reply."""
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [
        f"{command.usage:<{width}}  {command.summary} -> {command.reply}"
        for command in COMMANDS.values()
    ]
    return "\n".join([*rows, ""]).encode()


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


def _parse_words(command: Command, rest: bytes) -> Request:
    """Split the arguments at white space; bytes that are not UTF-8 are escaped, not lost."""
    words = rest.decode("utf-8", "surrogateescape").split()
    low = sum(argument.words_min for argument in command.arguments)
    high = sum(argument.words_max for argument in command.arguments)
    if not low <= len(words) <= high:
        most = f"to {high}" if high < MANY else "or more"
        wanted = str(low) if low == high else f"{low} {most}"
        raise _Misuse(f"{len(words)} arguments given, {wanted} expected")
    return command.request(*[argument.parse(words) for argument in command.arguments])


# --- the arguments ------------------------------------------------------------------------


def _topic(word: str) -> str:
    if not is_topic_name(word):
        raise InvalidTopic(
            f"'{_shown(word)}' is not a valid topic name; use 1 to 249 characters of A-Z a-z 0-9 "
            ". _ - (not . or ..)"
        )
    return word


def _reader(word: str) -> str:
    if not word.isprintable() or len(word.encode("utf-8", "replace")) > READER_BYTES_MAX:
        raise _Misuse(
            f"a reader's name is printable UTF-8 without spaces, up to {READER_BYTES_MAX} bytes"
        )
    return word


def _seq(word: str, low: int = 1) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19 and low <= int(word) <= SEQ_MAX):
        raise _Misuse(f"'{_shown(word)}' is not a seq, a whole number from {low}")
    return int(word)


def _position(word: str) -> int | StartPosition:
    return StartPosition(word.upper()) if word.upper() in {"START", "END"} else _seq(word)


def _start(words: list[str]) -> int | StartPosition:
    """``FROM_START``, ``FROM <seq>`` or nothing."""
    first = words[0].upper() if words else ""
    if first not in {"FROM_START", "FROM"}:
        return StartPosition.CURSOR
    del words[0]
    if first == "FROM_START":
        return StartPosition.START
    if not words:
        raise _Misuse("FROM needs a seq")
    return _seq(words.pop(0))


def _encode_start(start: int | StartPosition) -> Sequence[object]:
    if isinstance(start, int):
        return ("FROM", start)
    return ("FROM_START",) if start is StartPosition.START else ()


def _as_reader(words: list[str]) -> str | None:
    """``AS <reader>`` or nothing; always the last argument."""
    if not words:
        return None
    if len(words) != 2 or words[0].upper() != "AS":
        raise _Misuse("after the topic, only AS and a reader's name are allowed")
    return _reader(words[1])


def _settings(words: list[str]) -> tuple[tuple[str, str], ...]:
    """``<name>=<value>`` once or more; always the last argument."""
    settings = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise _Misuse(f"'{_shown(word)}' is not a setting, <name>=<value>")
        settings.append((name, value))
    return tuple(settings)


def _word(usage: str, parse: Callable[[str], object]) -> _Argument:
    return _Argument(
        usage,
        1,
        1,
        lambda words: parse(words.pop(0)),
        lambda value: (value.value if isinstance(value, StartPosition) else value,),
    )


_TOPIC: Final = _word("<topic>", _topic)
_READER: Final = _word("<reader>", _reader)
_OPTIONAL_TOPIC: Final = _Argument(
    "[<topic>]",
    0,
    1,
    lambda words: _topic(words.pop(0)) if words else None,
    lambda topic: () if topic is None else (topic,),
)
_AS_READER: Final = _Argument(
    "[AS <reader>]", 0, 2, _as_reader, lambda reader: () if reader is None else ("AS", reader)
)
_START: Final = _Argument("[FROM_START | FROM <seq>]", 0, 2, _start, _encode_start)
_SETTINGS: Final = _Argument(
    "<name>=<value> ...",
    1,
    MANY,
    _settings,
    lambda settings: [f"{name}={value}" for name, value in settings],
)
_PAYLOAD: Final = _Argument("<payload>", 1, MANY, lambda _: b"", lambda _: ())  # see ``_parse_put``

_TABLE: Final = (
    Command(
        "GET_ACK",
        "ACK <seq>",
        "the last durable seq; 0 when there is none",
        GetAck,
        (_OPTIONAL_TOPIC,),
    ),
    Command(
        "GET_STATUS",
        "PENDING | PROCESSED | ARCHIVED <bundle> | UNKNOWN",
        "the state of a record",
        GetStatus,
        (_word("<seq>", _seq), _OPTIONAL_TOPIC),
    ),
    Command(
        "SUBSCRIBE",
        "seq|broker_ts|routing_key|producer_ts|n|payload ...",
        "stream records; without FROM, the reader's cursor or else new records",
        Subscribe,
        (_TOPIC, _START, _AS_READER),
    ),
    Command(
        "ACK",
        "OK",
        "the reader has processed everything up to seq",
        Ack,
        (_TOPIC, _READER, _word("<seq>", partial(_seq, low=0))),
    ),
    Command(
        "REGISTER",
        "OK",
        "create the topic, and the reader that RECLAIM waits for",
        Register,
        (_TOPIC, _AS_READER),
    ),
    Command("PUT", "OK", "append one record, durable before the reply", Put, (_TOPIC, _PAYLOAD)),
    Command(
        "GET", "OK <payload> | EMPTY", "take the reader's next record", Get, (_TOPIC, _AS_READER)
    ),
    Command("STATE", "JSON", "the topic's segments", State, (_TOPIC,)),
    Command("METRICS", "JSON", "the broker's counters", Metrics),
    Command("READERS", "JSON", "registered readers and their cursors", Readers, (_OPTIONAL_TOPIC,)),
    Command(
        "RESET",
        "OK",
        "set set the next record the reader gets",
        Reset,
        (_TOPIC, _READER, _word("<seq> | START | END", _position)),
    ),
    Command("REMOVE", "OK", "remove a reader", Remove, (_TOPIC, _READER)),
    Command(
        "CONFIGURE", "OK", "change a topic's settings, all or none", Configure, (_TOPIC, _SETTINGS)
    ),
    Command("CUT", "OK <segments sealed>", "seal the active segment now", Cut, (_TOPIC,)),
    Command(
        "RECLAIM",
        "OK <segments dropped>",
        "drop the segments that may be dropped now",
        Reclaim,
        (_OPTIONAL_TOPIC,),
    ),
    Command("HELP", "lines, then an empty line", "this list", Help),
    Command("QUIT", "OK", "close the connection", Quit),
)
COMMANDS: Final[dict[str, Command]] = {command.name: command for command in _TABLE}
