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
from typing import Final

from cordwood.client.diagnosis import SILENCE_S
from cordwood.client.effects import Connect, Diagnose, Flow, Pause, Transfer
from cordwood.client.flow_methods import Runner, flow_method
from cordwood.client.send_buffer import Message, Sendable, SendBuffer
from cordwood.clock import SystemClock
from cordwood.errors import CordwoodError, ProtocolError, RequestError, UnavailableError
from cordwood.protocol.line.framing import Framing, Splitter, TooLong
from cordwood.protocol.line.ingress import encode_hello, is_producer_name
from cordwood.protocol.line.replies import Welcome, parse_ack, parse_welcome
from cordwood.tls import ClientTls

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
CHUNK_BYTES: Final = 256 * 1024  # written between two reads of the acknowledgements

_REPLY_BYTES_MAX: Final = 64 * 1024


class ProducerFlows(Runner):
    """The methods of a producer, as flows; ``blocking.Producer`` and ``aio.Producer`` run them."""

    def __init__(
        self,
        address: str | tuple[str, int],
        name: str | None = None,
        epoch: int | None = None,
        *,
        tls: ClientTls | ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        binary: bool = False,
        batch_bytes: int = 64 * 1024,
        unconfirmed_bytes_max: int = 8 * 1024 * 1024,
        line_bytes_max: int = 1024 * 1024,
        stall_timeout_s: float = 30.0,
    ) -> None:
        """Connects on the first record; ``timeout_s`` limits every call.

        ``tls``: connect with TLS, by certificates (``ClientTls``) or a context of your own.

        ``epoch``: None accepts the one that the broker assigns. ``binary``: send frames instead of
        lines, so payloads may contain newlines. ``batch_bytes`` are collected before they are
        written. Above ``unconfirmed_bytes_max``, ``send`` waits. ``line_bytes_max`` is the broker's
        line.bytes.max. A connection silent for ``stall_timeout_s`` counts as broken.
        """
        super().__init__(address, tls, timeout_s)
        self._name = name or f"py-{uuid.uuid4().hex}"
        if not is_producer_name(self._name):
            raise RequestError(f"{self._name!r} cannot name a producer; use A-Z a-z 0-9 . _ -")
        self._epoch = epoch
        self._batch_bytes = batch_bytes
        self._unconfirmed_bytes_max = unconfirmed_bytes_max
        self._stall_timeout_s = stall_timeout_s
        self._clock = SystemClock()
        self._framing = Framing.FRAMES if binary else Framing.TEXT
        self._replies = Splitter(self._framing, _REPLY_BYTES_MAX)
        self._is_opened = False  # has been connected once, so records can be numbered
        self._is_connected = False
        self._attempts = 0  # connection attempts since the last confirmation
        self._buffer = SendBuffer(self._framing, line_bytes_max)

    @property
    def name(self) -> str:
        """The name of this producer at the broker."""
        return self._name

    @property
    def epoch(self) -> int | None:
        """The epoch that the broker confirmed; before that, the one given."""
        return self._epoch

    @property
    def unconfirmed(self) -> int:
        """The number of records that the broker has not confirmed yet."""
        return len(self._buffer)

    @property
    def confirmed_n(self) -> int:
        """The ``n`` up to which everything is durable; 0 before the first."""
        return self._buffer.confirmed_n

    @flow_method
    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Wait until everything sent is durable; reconnects and resends as necessary."""
        return self._drive(self._deadline(timeout_s), lambda: not len(self._buffer))

    @flow_method
    def send_and_confirm(
        self, records: Iterable[Sendable], timeout_s: float | None = None
    ) -> Flow[int]:
        """Send records, wait until all are durable, each exactly once, and return their number.

        Raises ``UnavailableError`` on timeout. Unconfirmed records are kept, and the next ``flush``
        continues with them.
        """
        deadline = self._deadline(timeout_s)
        yield from self._drive(deadline, lambda: self._is_connected)
        count = 0
        for record in records:
            self._add(Message(*record))
            count += 1
            if self._is_due():
                yield from self._relieve(self._left(deadline))
        yield from self._drive(deadline, lambda: not len(self._buffer))
        return count

    def _finish(self) -> Flow[None]:
        return self._drive(self._deadline(None), lambda: not len(self._buffer))

    def _open(self) -> Flow[None]:
        """Connect and send HELLO, unless already done."""
        return self._drive(self._deadline(None), lambda: self._is_connected)

    def _add(self, message: Message) -> int:
        """Queue one record and return its ``n``. The producer must have been opened once."""
        return self._buffer.add(message, self._clock.now_ms())

    def _is_due(self) -> bool:
        """Whether enough is queued to write it."""
        return self._buffer.unsent_bytes >= self._batch_bytes

    def _relieve(self, timeout_s: float) -> Flow[None]:
        """Write what is queued; wait while too much is unconfirmed."""
        limit = self._unconfirmed_bytes_max
        buffer = self._buffer
        return self._drive(
            self._deadline(timeout_s),
            lambda: buffer.unsent_bytes == 0 and buffer.pending_bytes <= limit,
        )

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
            except OSError as error:
                self._is_connected = False
                cause = error
                if not self._is_opened or isinstance(error, ssl.SSLCertVerificationError):
                    yield Diagnose(error)  # a retry changes neither a certificate nor a wrong port
            except CordwoodError as error:
                self._is_connected = False
                if isinstance(error, ProtocolError) and not self._is_opened:
                    yield Diagnose(ConnectionError(str(error)))
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
        self._epoch = welcome.epoch
        self._buffer.resume(welcome)
        self._is_connected = self._is_opened = True
        self._take_replies(b"")

    def _greet(self, deadline: float) -> Flow[Welcome]:
        """Send HELLO and read the reply; reconnects send the epoch, to fence nobody by accident."""
        hello = self._framing.encode(encode_hello(self._name, self._epoch))
        silence_s = SILENCE_S if not self._is_opened else self._timeout_s
        arrived = yield Transfer(hello, True, max(min(silence_s, self._left(deadline)), 0.001))
        if not arrived and not self._is_opened:
            yield Diagnose(TimeoutError("no reply to HELLO"))
        self._replies.receive(arrived)
        while (reply := self._replies.next_message()) is None:
            if self._left(deadline) <= 0:
                raise TimeoutError("no reply to HELLO")
            arrived = yield Transfer(b"", True, self._left(deadline))
            self._replies.receive(arrived)
        welcome = parse_welcome(whole(reply))
        if welcome.producer != self._name:
            raise ProtocolError(f"the broker welcomed {welcome.producer} and this is {self._name}")
        return welcome

    def _exchange(self, deadline: float, is_done: Callable[[], bool]) -> Flow[None]:
        """Write a chunk and read acknowledgements; too long a silence is a lost connection."""
        data = self._buffer.take_unsent(CHUNK_BYTES)
        is_awaited = self._buffer.unsent_bytes == 0 and not is_done()
        wait_s = max(min(self._stall_timeout_s, self._left(deadline)), 0.001)
        arrived = yield Transfer(data, is_awaited, wait_s)
        if is_awaited and not arrived:
            raise TimeoutError(f"no confirmation for {wait_s:.1f} s")
        self._take_replies(arrived)

    def _take_replies(self, arrived: bytes) -> None:
        """``ACK`` lines confirm records; an ``ERR`` is raised as the error class it names."""
        self._replies.receive(arrived)
        while (reply := self._replies.next_message()) is not None:
            if self._buffer.confirm(parse_ack(whole(reply))):
                self._attempts = 0

    def _late(self, cause: Exception | None) -> UnavailableError:
        why = f" ({cause})" if cause else ""
        if not len(self._buffer):
            return UnavailableError(
                f"the broker at {self._address} is unreachable{why}; is it running?"
            )
        kept = f"{len(self._buffer)} unconfirmed records are kept; call flush() to send them again"
        return UnavailableError(f"{self._address} did not confirm in time{why}; {kept}")

    def _deadline(self, timeout_s: float | None) -> float:
        return self._clock.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _left(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()


def whole(reply: bytes | TooLong) -> bytes:
    """Return the reply; raise if it is longer than any reply of a broker."""
    if isinstance(reply, TooLong):
        raise ProtocolError(
            f"a reply of {reply.total_bytes} bytes is too long; is this a cordwood broker?"
        )
    return reply
