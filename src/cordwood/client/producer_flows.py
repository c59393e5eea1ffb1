"""How a producer talks to the ingress listener, as flows: connect, number, send, confirm, resend.

This is the retry loop of the KMQ notes without its duplicates. Each connection opens with
``HELLO``; the answer says what is durable; ``ACK`` lines say so as it grows; and a lost
connection is opened again, with growing pauses, until the caller's time is over.
"""

from __future__ import annotations

import random
import ssl
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypedDict

from cordwood.client.effects import Address, Connect, Flow, Pause, Transfer
from cordwood.client.send_buffer import Message, Sendable, SendBuffer
from cordwood.clock import Clock, SystemClock
from cordwood.errors import CordwoodError, ProtocolError, RequestError, UnavailableError
from cordwood.protocol.line.framing import Framing, Splitter, TooLong
from cordwood.protocol.line.ingress import encode_hello, is_producer_name
from cordwood.protocol.line.replies import Welcome, parse_ack, parse_welcome

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
CHUNK_BYTES: Final = 256 * 1024  # how much is written between two looks at the acknowledgements

_REPLY_BYTES_MAX: Final = 64 * 1024


class Limits(TypedDict, total=False):
    """What a producer may be told beside its address and name; ``ProducerOptions`` explains."""

    binary: bool
    batch_bytes: int
    unconfirmed_bytes_max: int
    line_bytes_max: int
    stall_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """A producer's name and limits, with their defaults."""

    name: str | None = None  # None makes one up
    epoch: int | None = None  # None takes the one the broker says
    binary: bool = False  # frames instead of lines, so that payloads may hold newlines
    batch_bytes: int = 64 * 1024  # what gathers before it is written
    unconfirmed_bytes_max: int = 8 * 1024 * 1024  # above it ``send`` waits
    line_bytes_max: int = 1024 * 1024  # the broker's line.bytes.max
    stall_timeout_s: float = 30.0  # silence this long means the connection is dead


class ProducerFlows:
    """One producer's conversation; ``blocking`` and ``aio`` each wrap one of these."""

    def __init__(
        self, address: Address, options: ProducerOptions, clock: Clock | None = None
    ) -> None:
        """Nothing is opened before the first record."""
        self.name = options.name or f"py-{uuid.uuid4().hex}"
        if not is_producer_name(self.name):
            raise RequestError(f"{self.name!r} cannot name a producer; use A-Z a-z 0-9 . _ -")
        self.epoch = options.epoch
        self._address = address
        self._options = options
        self._clock = clock or SystemClock()
        self._framing = Framing.FRAMES if options.binary else Framing.TEXT
        self._replies = Splitter(self._framing, _REPLY_BYTES_MAX)
        self._is_connected = False
        self._attempts = 0  # connections tried since the last confirmation
        self.outbox = SendBuffer(self._framing, options.line_bytes_max)

    def open(self, timeout_s: float) -> Flow[None]:
        """Connect and say HELLO, unless that is done."""
        yield from self._drive(self._deadline(timeout_s), lambda: self._is_connected)

    def add(self, message: Message) -> int:
        """Queue one record; its ``n``. The producer must have been opened once."""
        return self.outbox.add(message, self._clock.now_ms())

    def is_due(self) -> bool:
        """Whether enough is queued that it should be written."""
        return self.outbox.unsent_bytes >= self._options.batch_bytes

    def relieve(self, timeout_s: float) -> Flow[None]:
        """Write what is queued; wait only while too much is unconfirmed."""
        limit = self._options.unconfirmed_bytes_max
        box = self.outbox
        yield from self._drive(
            self._deadline(timeout_s),
            lambda: box.unsent_bytes == 0 and box.pending_bytes <= limit,
        )

    def flush(self, timeout_s: float) -> Flow[None]:
        """Until everything added is confirmed."""
        yield from self._drive(self._deadline(timeout_s), lambda: not len(self.outbox))

    def send_and_confirm(self, messages: Iterable[Sendable], timeout_s: float) -> Flow[int]:
        """Add all, confirm all, in that time; how many they were."""
        deadline = self._deadline(timeout_s)
        yield from self._drive(deadline, lambda: self._is_connected)
        count = 0
        for message in messages:
            self.add(Message(*message))
            count += 1
            if self.is_due():
                yield from self.relieve(self._left(deadline))
        yield from self._drive(deadline, lambda: not len(self.outbox))
        return count

    def _drive(self, deadline: float, is_done: Callable[[], bool]) -> Flow[None]:
        """Connect, write and listen until done; lost connections are opened again."""
        cause: Exception | None = None
        while not is_done():
            if self._left(deadline) <= 0:
                raise self._late(cause) from cause
            try:
                if self._is_connected:
                    yield from self._exchange(deadline, is_done)
                else:
                    yield from self._connect(deadline)
            except ssl.SSLCertVerificationError as error:  # the one OSError time will not mend
                raise UnavailableError(f"{self._address} is not to be trusted: {error}") from error
            except OSError as error:
                self._is_connected = False
                cause = error
            except CordwoodError as error:
                self._is_connected = False
                if not error.retriable:
                    raise
                cause = error

    def _connect(self, deadline: float) -> Flow[None]:
        if self._attempts:
            pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(self._attempts - 1, 10))
            jitter = 0.5 + random.random() / 2  # noqa: S311 - spreads producers, hides nothing
            yield Pause(min(pause_s * jitter, self._left(deadline)))
        self._attempts += 1
        yield Connect(max(self._left(deadline), 0.001))
        self._replies = Splitter(self._framing, _REPLY_BYTES_MAX)
        welcome = yield from self._greet(deadline)
        self.epoch = welcome.epoch
        self.outbox.resume(welcome)
        self._is_connected = True
        self._take_replies(b"")

    def _greet(self, deadline: float) -> Flow[Welcome]:
        """HELLO, and its answer. Later the epoch is named, so that nobody fences us by accident."""
        hello = self._framing.encode(encode_hello(self.name, self.epoch))
        arrived = yield Transfer(hello, True, max(self._left(deadline), 0.001))
        self._replies.receive(arrived)
        while (reply := self._replies.next_message()) is None:
            if self._left(deadline) <= 0:
                raise TimeoutError("no answer to HELLO")
            arrived = yield Transfer(b"", True, self._left(deadline))
            self._replies.receive(arrived)
        welcome = parse_welcome(whole(reply))
        if welcome.producer != self.name:
            raise ProtocolError(f"the broker welcomed {welcome.producer} and this is {self.name}")
        return welcome

    def _exchange(self, deadline: float, is_done: Callable[[], bool]) -> Flow[None]:
        """Write a chunk and take in acknowledgements; silence for too long is a lost connection."""
        data = self.outbox.take_unsent(CHUNK_BYTES)
        is_awaited = self.outbox.unsent_bytes == 0 and not is_done()
        wait_s = max(min(self._options.stall_timeout_s, self._left(deadline)), 0.001)
        arrived = yield Transfer(data, is_awaited, wait_s)
        if is_awaited and not arrived:
            raise TimeoutError(f"nothing was confirmed for {wait_s:.1f} s")
        self._take_replies(arrived)

    def _take_replies(self, arrived: bytes) -> None:
        """``ACK`` lines move the outbox on; an ``ERR`` is raised as the error it was."""
        self._replies.receive(arrived)
        while (reply := self._replies.next_message()) is not None:
            if self.outbox.confirm(parse_ack(whole(reply))):
                self._attempts = 0

    def _late(self, cause: Exception | None) -> UnavailableError:
        why = f" ({cause})" if cause else ""
        if not len(self.outbox):
            return UnavailableError(f"the broker at {self._address} is away{why}; is it running?")
        kept = f"{len(self.outbox)} records are unconfirmed and kept, flush() tries them again"
        return UnavailableError(f"{self._address} did not confirm in time{why}; {kept}")

    def _deadline(self, timeout_s: float) -> float:
        return self._clock.monotonic() + timeout_s

    def _left(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()


def whole(reply: bytes | TooLong) -> bytes:
    """The reply, unless it is longer than any a broker sends."""
    if isinstance(reply, TooLong):
        raise ProtocolError(f"a reply of {reply.total_bytes} bytes is no broker's")
    return reply
