"""The commands of the control listener: one table from name to arguments, usage and meaning.

The table serves broker and client, ``HELP`` and ``docs/protocols-line.md``. A request is a frozen
value. Input that does not parse raises a ``RequestError`` that shows the usage. Nothing here knows
whether a topic exists; the broker checks that.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from cordwood.errors import RequestError, UnknownCommand
from cordwood.protocol.line import arguments as a
from cordwood.protocol.line.arguments import (
    Argument,
    Misuse,
    StartPosition,
    Target,
    parse_target,
    shown,
)


class LineRequest:
    """A command with its arguments."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GetAck(LineRequest):
    """Ask for the last durable seq of each partition; None is what ingress lines are written to."""

    target: Target | None = None


@dataclass(frozen=True, slots=True)
class GetStatus(LineRequest):
    """Ask for the state of a record; None is what ingress lines are written to."""

    seq: int
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Subscribe(LineRequest):
    """Stream a topic's records; a number is the first seq to send."""

    target: Target
    start: int | StartPosition = StartPosition.CURSOR
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Ack(LineRequest):
    """The reader has processed everything up to and including this seq."""

    target: Target
    reader: str
    seq: int


@dataclass(frozen=True, slots=True)
class Register(LineRequest):
    """Create the topic if it is missing and, with a name, register a reader on it."""

    topic: str
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Put(LineRequest):
    """Append one record; the payload is stored byte for byte."""

    target: Target
    payload: bytes


@dataclass(frozen=True, slots=True)
class Get(LineRequest):
    """Take the reader's next record; without a name, the shared default reader's."""

    target: Target
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class State(LineRequest):
    """Describe a topic and its segments."""

    target: Target


@dataclass(frozen=True, slots=True)
class Metrics(LineRequest):
    """Ask for the broker's counters."""


@dataclass(frozen=True, slots=True)
class Readers(LineRequest):
    """List the registered readers and their cursors; None is every topic."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Reset(LineRequest):
    """Move a reader's cursor forward or back; a number is the next seq it will read."""

    target: Target
    reader: str
    to: int | StartPosition


@dataclass(frozen=True, slots=True)
class Remove(LineRequest):
    """Remove a reader; RECLAIM no longer waits for it."""

    topic: str
    reader: str


@dataclass(frozen=True, slots=True)
class Drain(LineRequest):
    """Acknowledge everything for a reader in one topic; None is every route it is registered on."""

    reader: str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Configure(LineRequest):
    """Change settings of a topic, all or none; values are written as in Kafka's tools."""

    topic: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cut(LineRequest):
    """Seal the topic's active segment now."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reclaim(LineRequest):
    """Delete the sealed segments that RECLAIM allows now; None is every topic."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Set(LineRequest):
    """Change how this connection's later PUTs are read: with or without quotes around payloads."""

    strips_quotes: bool


@dataclass(frozen=True, slots=True)
class Help(LineRequest):
    """List the commands."""


@dataclass(frozen=True, slots=True)
class Quit(LineRequest):
    """Reply OK and close."""


class Command(NamedTuple):
    """A row of the command table."""

    name: str
    reply: str
    summary: str
    request: type[Any]
    arguments: tuple[Argument, ...] = ()  # of ``request``, in its order

    @property
    def usage(self) -> str:
        """How to write the command, such as ``GET_ACK [<topic>]``."""
        return " ".join([self.name, *(argument.usage for argument in self.arguments)])


def parse_command(body: bytes) -> LineRequest:
    """Parse one command without its newline or length; raise ``RequestError`` if it is invalid."""
    name, rest = [*body.split(None, 1), b"", b""][:2]
    word = shown(name.upper())
    if word not in COMMANDS:
        raise UnknownCommand(_unknown(word))
    command = COMMANDS[word]
    try:
        return _parse_put(rest) if command.request is Put else _parse_words(command, rest)
    except Misuse as error:
        raise RequestError(f"{error}; send {command.usage}") from None


def encode_command(request: LineRequest) -> bytes:
    """Encode a request for the client; raise ``RequestError`` for names that no broker accepts."""
    command = next(row for row in COMMANDS.values() if row.request is type(request))
    words = [command.name]
    for argument, field in zip(command.arguments, fields(command.request), strict=True):
        words += map(str, argument.encode(getattr(request, field.name)))
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


def _parse_put(rest: bytes) -> Put:
    """Not split into words like the others: one space, then the payload up to the end."""
    topic, space, payload = rest.partition(b" ")
    if not space:
        raise Misuse("a topic, one space and a payload must follow")
    return Put(parse_target(topic.decode("utf-8", "surrogateescape")), payload)


def _parse_words(command: Command, rest: bytes) -> LineRequest:
    """Split the arguments at white space; bytes that are not UTF-8 are escaped, not lost."""
    words = rest.decode("utf-8", "surrogateescape").split()
    low = sum(argument.words_min for argument in command.arguments)
    high = sum(argument.words_max for argument in command.arguments)
    if not low <= len(words) <= high:
        most = f"to {high}" if high < a.MANY else "or more"
        wanted = str(low) if low == high else f"{low} {most}"
        raise Misuse(f"{len(words)} arguments given, {wanted} expected")
    request: LineRequest = command.request(*[each.parse(words) for each in command.arguments])
    return request


_TABLE: Final = (
    Command(
        "GET_ACK",
        "ACK <seq> | ACK <partition>:<seq> ...",
        "the last durable seq; 0 when there is none",
        GetAck,
        (a.OPTIONAL_TARGET,),
    ),
    Command(
        "GET_STATUS",
        "PENDING | PROCESSED | ARCHIVED <bundle> | UNKNOWN",
        "the state of a record",
        GetStatus,
        (a.SEQ, a.OPTIONAL_TARGET),
    ),
    Command(
        "SUBSCRIBE",
        "[partition:]seq|broker_ts|routing_key|producer_ts|n|payload ...",
        "stream records; without FROM, the reader's cursor or else new records",
        Subscribe,
        (a.TARGET, a.START, a.AS_READER),
    ),
    Command(
        "ACK",
        "OK",
        "the reader has processed everything up to seq",
        Ack,
        (a.TARGET, a.READER, a.ACKED_SEQ),
    ),
    Command(
        "REGISTER",
        "OK",
        "create the topic, and the reader that RECLAIM waits for",
        Register,
        (a.TOPIC, a.AS_READER),
    ),
    Command("PUT", "OK", "append one record, durable before the reply", Put, (a.TARGET, a.PAYLOAD)),
    Command(
        "GET", "OK <payload> | EMPTY", "take the reader's next record", Get, (a.TARGET, a.AS_READER)
    ),
    Command("STATE", "JSON", "the topic's segments and cursors", State, (a.TARGET,)),
    Command("METRICS", "JSON", "the broker's counters", Metrics),
    Command(
        "READERS", "JSON", "registered readers and their cursors", Readers, (a.OPTIONAL_TOPIC,)
    ),
    Command(
        "RESET",
        "OK",
        "set the next record the reader gets",
        Reset,
        (a.TARGET, a.READER, a.POSITION),
    ),
    Command("REMOVE", "OK", "remove a reader", Remove, (a.TOPIC, a.READER)),
    Command(
        "DRAIN",
        "OK <records acknowledged>",
        "the reader has processed everything in the topic, or in all its routes",
        Drain,
        (a.READER, a.OPTIONAL_TOPIC),
    ),
    Command(
        "CONFIGURE",
        "OK",
        "change a topic's settings, all or none",
        Configure,
        (a.TOPIC, a.SETTINGS),
    ),
    Command("CUT", "OK <segments sealed>", "seal the active segment now", Cut, (a.TOPIC,)),
    Command(
        "RECLAIM",
        "OK <segments dropped>",
        "drop the segments that may be dropped now",
        Reclaim,
        (a.OPTIONAL_TOPIC,),
    ),
    Command("SET", "OK", "whether PUT drops quotes around a payload", Set, (a.QUOTES,)),
    Command("HELP", "lines, then an empty line", "this list", Help),
    Command("QUIT", "OK", "close the connection", Quit),
)
COMMANDS: Final[dict[str, Command]] = {command.name: command for command in _TABLE}
