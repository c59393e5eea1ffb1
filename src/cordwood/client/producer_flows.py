"""Producer side of the ingress protocol, as flows: connect, number, send, confirm, resend.

This is the retry loop of the KMQ notes without its duplicates. Each connection begins with
``HELLO``, whose reply says what is durable; ``ACK`` lines report further progress. A lost
connection is opened again with exponential backoff until the caller's time-out.
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
CHUNK_BYTES: Final = 256 * 1024  # written between two reads of the acknowledgements

_REPLY_BYTES_MAX: Final = 64 * 1024


class Limits(TypedDict, total=False):
    """Options of a producer besides its address and name; see ``ProducerOptions``."""

    binary: bool
    batch_bytes: int
    unconfirmed_bytes_max: int
    line_bytes_max: int
    stall_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """A producer's name and limits, with their defaults."""

    name: str | None = None  # None generates one
    epoch: int | None = None  # None accepts the one that the broker assigns
    binary: bool = False  # frames instead of lines, so payloads may contain newlines
    batch_bytes: int = 64 * 1024  # collected before it is written
    unconfirmed_bytes_max: int = 8 * 1024 * 1024  # above it ``send`` waits
    line_bytes_max: int = 1024 * 1024  # the broker's line.bytes.max
    stall_timeout_s: float = 30.0  # a connection silent for this long counts as broken


class ProducerFlows:
    """The flows of one producer; ``blocking`` and ``aio`` each wrap one of these."""

    def __init__(
        self, address: Address, options: ProducerOptions, clock: Clock | None = None
    ) -> None:
        """Does not connect before the first record."""
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
        self._attempts = 0  # connection attempts since the last confirmation
        self.outbox = SendBuffer(self._framing, options.line_bytes_max)

    def open(self, timeout_s: float) -> Flow[None]:
        """Connect and send HELLO, unless already done."""
        yield from self._drive(self._deadline(timeout_s), lambda: self._is_connected)

    def add(self, message: Message) -> int:
        """Queue one record and return its ``n``. The producer must have been opened once."""
        return self.outbox.add(message, self._clock.now_ms())

    def is_due(self) -> bool:
        """Whether enough is queued to write it."""
        return self.outbox.unsent_bytes >= self._options.batch_bytes

    def relieve(self, timeout_s: float) -> Flow[None]:
        """Write what is queued; wait while too much is unconfirmed."""
        limit = self._options.unconfirmed_bytes_max
        box = self.outbox
        yield from self._drive(
            self._deadline(timeout_s),
            lambda: box.unsent_bytes == 0 and box.pending_bytes <= limit,
        )

    def flush(self, timeout_s: float) -> Flow[None]:
        """Wait until everything added is confirmed."""
        yield from self._drive(self._deadline(timeout_s), lambda: not len(self.outbox))

    def send_and_confirm(self, messages: Iterable[Sendable], timeout_s: float) -> Flow[int]:
        """Add all messages, wait until all are confirmed, and return their number."""
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
        """Connect, write and read until done; reopen lost connections."""
        cause: Exception | None = None
        while not is_done():
            if self._left(deadline) <= 0:
                raise self._late(cause) from cause
            try:
                if self._is_connected:
                    yield from self._exchange(deadline, is_done)
                else:
                    yield from self._connect(deadline)
            except ssl.SSLCertVerificationError as error:  # the only OSError a retry cannot fix
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
            jitter = 0.5 + random.random() / 2  # noqa: S311 - spreads reconnects, not for security
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
        """Send HELLO and read the reply; reconnects send the epoch, to fence nobody by accident."""
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
        """Write a chunk and read acknowledgements; too long a silence is a lost connection."""
        data = self.outbox.take_unsent(CHUNK_BYTES)
        is_awaited = self.outbox.unsent_bytes == 0 and not is_done()
        wait_s = max(min(self._options.stall_timeout_s, self._left(deadline)), 0.001)
        arrived = yield Transfer(data, is_awaited, wait_s)
        if is_awaited and not arrived:
            raise TimeoutError(f"nothing was confirmed for {wait_s:.1f} s")
        self._take_replies(arrived)

    def _take_replies(self, arrived: bytes) -> None:
        """``ACK`` lines confirm records; an ``ERR`` is raised as the error class it names."""
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
    """Return the reply; raise if it is longer than any reply of a broker."""
    if isinstance(reply, TooLong):
        raise ProtocolError(f"a reply of {reply.total_bytes} bytes is no broker's")
    return reply
