"""How a client talks to the control listener, as flows: one question, one answer; or a stream.

Always in frames, so payloads may hold any byte. A question that changes nothing when asked twice is
asked again when a connection turns out to be dead, as one idle for long is; ``PUT`` and ``GET`` are
not, since the first asking may have been heard.
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
    """What became of a record."""

    PENDING = "PENDING"  # durable, and some registered reader has not passed it
    PROCESSED = "PROCESSED"
    ARCHIVED = "ARCHIVED"  # gone from the broker's disk, and in a bundle
    UNKNOWN = "UNKNOWN"  # never written, or gone without a bundle


class Status(NamedTuple):
    """The answer to ``status``; the bundle is named when the record is archived."""

    word: StatusWord
    bundle: str | None = None


class Taken(NamedTuple):
    """A record that ``get`` took; a tombstone's payload is None."""

    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A request, how its answer is read, and whether asking it twice is harmless."""

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
    """Any command that answers ``OK``."""
    return Question(request, r.parse_ok, is_repeatable)


def ask_json(request: c.Request) -> Question[dict[str, object]]:
    """Any command that answers JSON."""
    return Question(request, r.parse_json)


def ask_count(request: c.Request) -> Question[int]:
    """Any command that answers ``OK <count>``; all of them act, so none is repeated."""
    return Question(request, r.parse_count, is_repeatable=False)


def ask_get(topic: str, reader: str | None) -> Question[Taken | None]:
    """``GET``."""
    return Question(c.Get(topic, reader), _parse_taken, is_repeatable=False)


def plan_start(*, from_seq: int | None, from_start: bool) -> int | c.StartPosition:
    """Where a subscription begins."""
    assert from_seq is None or not from_start, "from_seq and from_start exclude each other"
    if from_seq is not None:
        return from_seq
    return c.StartPosition.START if from_start else c.StartPosition.CURSOR


class ClientFlows:
    """One client's conversation; ``blocking`` and ``aio`` each wrap one of these."""

    def __init__(self, address: Address) -> None:
        """Nothing is opened before the first question."""
        self._address = address
        self._replies: Splitter | None = None  # None while not connected

    def ask(self, question: Question[T], timeout_s: float) -> Flow[T]:
        """The answer; raises the broker's ``ERR``, or ``UnavailableError`` when it is away."""
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
        """Whatever goes wrong, the connection is not used again: its next reply might be this."""
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
    """One subscription on a connection of its own."""

    def __init__(
        self, address: Address, request: c.Subscribe, idle_timeout_s: float | None
    ) -> None:
        """Nothing is opened before the first record is asked for."""
        self._address = address
        self._opening = _FRAMES.encode(c.encode_command(request))
        self._idle_timeout_s = idle_timeout_s
        self._splitter = Splitter(_FRAMES, _REPLY_BYTES_MAX)
        self._lines: deque[Line] = deque()
        self._is_open = False
        self._last_seq = 0

    def take(self) -> Line | None:
        """A record already here, if there is one."""
        return self._lines.popleft() if self._lines else None

    def next_line(self, timeout_s: float) -> Flow[Line | None]:
        """The next record; None when nothing came for the idle time. Raises what ``ERR`` says."""
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
