"""Client side of the control protocol, as flows: one request and its reply, or a stream.

Messages are always framed, so payloads may contain any byte. An idempotent request is sent again if
an existing connection turns out to be broken, as happens after a long idle time. ``PUT`` and
``GET`` are not repeated, because the broker may have executed the first one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from cordwood.client.effects import Address, Connect, Flow, Transfer
from cordwood.client.producer_flows import whole
from cordwood.errors import ProtocolError, UnavailableError
from cordwood.protocol.line import commands as c
from cordwood.protocol.line import replies as r
from cordwood.protocol.line.framing import Framing, Splitter
from cordwood.protocol.line.records import Line, parse_record

T = TypeVar("T")

_FRAMES: Final = Framing.FRAMES
_REPLY_BYTES_MAX: Final = 64 * 1024 * 1024


class StatusWord(StrEnum):
    """The state of a record."""

    PENDING = "PENDING"  # durable, and some registered reader has not read it yet
    PROCESSED = "PROCESSED"
    ARCHIVED = "ARCHIVED"  # deleted from the broker's disk, and in a bundle
    UNKNOWN = "UNKNOWN"  # never written, or deleted without a bundle


class Status(NamedTuple):
    """The answer to ``status``; it names the bundle of an archived record."""

    word: StatusWord
    bundle: str | None = None


class Taken(NamedTuple):
    """A record that ``get`` returned; a tombstone's payload is None."""

    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A request, the parser of its reply, and whether it may be repeated."""

    request: c.Request
    parse: Callable[[bytes], T]
    is_repeatable: bool = True


def ask_ack(topic: str | None) -> Question[int]:
    """``GET_ACK``."""
    return Question(c.GetAck(topic), r.parse_ack)


def ask_status(seq: int, topic: str | None) -> Question[Status]:
    """``GET_STATUS``."""
    return Question(c.GetStatus(seq, topic), _parse_status)


def ask_done(request: c.Request, *, is_repeatable: bool = True) -> Question[None]:
    """Any command whose reply is ``OK``."""
    return Question(request, r.parse_ok, is_repeatable)


def ask_json(request: c.Request) -> Question[dict[str, object]]:
    """Any command whose reply is JSON."""
    return Question(request, r.parse_json)


def ask_count(request: c.Request) -> Question[int]:
    """Any command whose reply is ``OK <count>``; never repeated, because each changes the log."""
    return Question(request, r.parse_count, is_repeatable=False)


def ask_get(topic: str, reader: str | None) -> Question[Taken | None]:
    """``GET``."""
    return Question(c.Get(topic, reader), _parse_taken, is_repeatable=False)


def plan_start(*, from_seq: int | None, from_start: bool) -> int | c.StartPosition:
    """Return where a subscription starts."""
    assert from_seq is None or not from_start, "from_seq and from_start exclude each other"
    if from_seq is not None:
        return from_seq
    return c.StartPosition.START if from_start else c.StartPosition.CURSOR


class ClientFlows:
    """The flows of one client; ``blocking`` and ``aio`` each wrap one of these."""

    def __init__(self, address: Address) -> None:
        """Does not connect before the first request."""
        self._address = address
        self._replies: Splitter | None = None  # None while not connected

    def ask(self, question: Question[T], timeout_s: float) -> Flow[T]:
        """Return the reply; raise the broker's error, or ``UnavailableError`` without a reply."""
        data = _FRAMES.encode(c.encode_command(question.request))
        was_connected = self._replies is not None
        try:
            reply = yield from self._exchange(data, timeout_s)
        except OSError as error:
            if not (was_connected and question.is_repeatable):
                raise self._away(error) from error
            try:
                reply = yield from self._exchange(data, timeout_s)
            except OSError as again:
                raise self._away(again) from again
        return question.parse(reply)

    def _exchange(self, data: bytes, timeout_s: float) -> Flow[bytes]:
        """Never reuse the connection after a failure: its next reply may belong to this request."""
        replies, self._replies = self._replies, None
        if replies is None:
            yield Connect(timeout_s)
            replies = Splitter(_FRAMES, _REPLY_BYTES_MAX)
        while (reply := replies.next_message()) is None:
            arrived = yield Transfer(data, True, timeout_s)
            if not arrived:
                raise TimeoutError(f"no answer within {timeout_s} s")
            replies.receive(arrived)
            data = b""
        self._replies = replies
        return whole(reply)

    def _away(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"the broker at {self._address} is away ({error}); is it running?")


class SubscriptionFlows:
    """The flow of one subscription, on its own connection."""

    def __init__(
        self, address: Address, request: c.Subscribe, idle_timeout_s: float | None
    ) -> None:
        """Does not connect before the first record is requested."""
        self._address = address
        self._opening = _FRAMES.encode(c.encode_command(request))
        self._idle_timeout_s = idle_timeout_s
        self._splitter = Splitter(_FRAMES, _REPLY_BYTES_MAX)
        self._lines: deque[Line] = deque()
        self._is_open = False
        self._last_seq = 0

    def take(self) -> Line | None:
        """Return a record that has already arrived, if any."""
        return self._lines.popleft() if self._lines else None

    def next_line(self, timeout_s: float) -> Flow[Line | None]:
        """The next record, or None after the idle time-out; raise the error of an ``ERR``."""
        try:
            if not self._is_open:
                yield Connect(timeout_s)
                yield Transfer(self._opening, False, timeout_s)
                self._is_open = True
            while not self._lines:
                arrived = yield Transfer(b"", True, self._idle_timeout_s)
                if not arrived:
                    return None
                self._receive(arrived)
        except OSError as error:
            raise UnavailableError(
                f"the subscription at {self._address} broke after seq {self._last_seq} ({error}); "
                f"subscribe again from seq {self._last_seq + 1}"
            ) from error
        return self._lines.popleft()

    def _receive(self, arrived: bytes) -> None:
        self._splitter.receive(arrived)
        while (body := self._splitter.next_message()) is not None:
            line = parse_record(r.check_reply(whole(body)), _FRAMES)
            self._last_seq = line.seq
            self._lines.append(line)


def _parse_status(body: bytes) -> Status:
    word, _, bundle = r.check_reply(body).decode("utf-8", "replace").partition(" ")
    if word not in set(StatusWord):
        raise ProtocolError(f"{word[:80]!r} is not the status of a record")
    return Status(StatusWord(word), bundle or None)


def _parse_taken(body: bytes) -> Taken | None:
    return None if body == r.EMPTY else Taken(r.parse_got(body, _FRAMES))
