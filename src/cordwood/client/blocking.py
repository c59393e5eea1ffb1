"""The blocking client: runs flows with a non-blocking socket and ``poll``."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

from cordwood.address import Address
from cordwood.client.control_flows import ClientFlows, SubscriptionFlows
from cordwood.client.diagnosis import ListenerKind, diagnose
from cordwood.client.effects import Connect, Diagnose, Effect, Flow, Pause, Transfer
from cordwood.client.flow_methods import Runner
from cordwood.client.producer_flows import ProducerFlows
from cordwood.client.send_buffer import Message
from cordwood.errors import CordwoodError
from cordwood.protocol.line.commands import Subscribe
from cordwood.protocol.line.records import Line
from cordwood.tls import ClientTls, context_of

T = TypeVar("T")

_RECEIVE_BYTES = 256 * 1024


class BlockingConnection:
    """One socket and the flows that use it."""

    def __init__(self, address: Address, tls: ClientTls | ssl.SSLContext | None) -> None:
        """Does not connect before a flow requests it."""
        self._address = address
        self._tls = tls
        self._socket: socket.socket | None = None

    def run(self, flow: Flow[T]) -> T:
        """Run a flow; close the socket if interrupted, because a write may be incomplete."""
        try:
            effect = next(flow)
            while True:
                try:
                    result = self._perform(effect)
                except OSError as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except CordwoodError:
            raise  # a reply like any other; the flow decides what it means for the connection
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; a flow may open another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _perform(self, effect: Effect) -> bytes:
        match effect:
            case Connect(timeout_s):
                self._connect(timeout_s)
            case Pause(seconds):
                time.sleep(max(seconds, 0))
            case Transfer():
                return self._transfer(effect)
            case Diagnose(error):
                self._diagnose(error)
        return b""

    def _diagnose(self, error: OSError) -> None:
        context = context_of(self._tls)
        if found := diagnose(error, self._address, ListenerKind.LINES, context):
            raise found from error

    def _connect(self, timeout_s: float) -> None:
        self.close()
        opened = socket.create_connection(self._address, timeout_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context := context_of(self._tls):
                opened = context.wrap_socket(opened, server_hostname=self._address.host)
            opened.setblocking(False)
        except BaseException:
            opened.close()
            raise
        self._socket = opened

    def _transfer(self, effect: Transfer) -> bytes:
        if self._socket is None:
            raise ConnectionError("the connection was closed")
        deadline = None if effect.timeout_s is None else time.monotonic() + effect.timeout_s
        unsent = memoryview(effect.data)
        arrived = bytearray()
        while True:
            is_ended = _receive(self._socket, arrived)
            if is_ended and not arrived:
                raise ConnectionError("the broker closed the connection")
            written = 0 if is_ended else _send(self._socket, unsent)
            unsent = unsent[written or 0 :]
            if is_ended or (not unsent and (arrived or not effect.is_awaited)):
                return bytes(arrived)
            is_writing = bool(unsent) and written is not None
            if not written and not _wait(self._socket, deadline, is_writing=is_writing):
                if unsent:
                    raise TimeoutError("the broker accepts no more data")
                return b""


def _receive(source: socket.socket, arrived: bytearray) -> bool:
    """Read what is available into ``arrived``; return whether the peer closed its side."""
    try:
        data = source.recv(_RECEIVE_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    arrived += data
    return not data


def _send(target: socket.socket, unsent: memoryview) -> int | None:
    """Write as much as the socket accepts; None if TLS must read before it can write."""
    if not unsent:
        return 0
    try:
        return target.send(unsent)
    except (BlockingIOError, ssl.SSLWantWriteError):
        return 0
    except ssl.SSLWantReadError:
        return None


def _wait(waited: socket.socket, deadline: float | None, *, is_writing: bool) -> bool:
    """Wait until the socket is readable (or writable, if asked); False if the time ran out."""
    poll = select.poll()
    poll.register(waited, select.POLLIN | (select.POLLOUT if is_writing else 0))
    if deadline is None:
        return bool(poll.poll())
    return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1000))


class BlockingRunner(Runner):
    """The half of each class that blocks: a socket, and ``with``."""

    is_async = False
    _connection_type = BlockingConnection
    _connection: BlockingConnection

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(flow)

    def close(self) -> None:
        """Close the connection; records that were not flushed may or may not be stored."""
        self._connection.close()

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; a producer flushes before that, if the block raised no exception."""
        try:
            if kind is None:
                self._run(self._finish())
        finally:
            self.close()


class Producer(ProducerFlows, BlockingRunner):
    """Sends records to the ingress listener; each is stored exactly once, even across reconnects.

    ``name`` identifies the producer across restarts of either side: a producer that returns under
    its name continues after the last record the broker has. Without a name, one is generated. A
    record is queued until ``batch_bytes`` have accumulated, ``flush`` is called or the ``with``
    block ends without an exception. At most ``unconfirmed_bytes_max`` are unconfirmed; above it
    ``send`` waits. Payloads with newlines need ``binary=True``.
    """

    def send(
        self, routing_key: str | bytes, payload: str | bytes, timestamp_ms: int | None = None
    ) -> int:
        """Queue one record and return its ``n``. The producer's timestamp defaults to now.

        Raises ``UnavailableError`` if it had to wait too long for earlier records. This record is
        numbered and kept anyway, so call ``flush`` instead of sending it again.
        """
        if not self._is_opened:
            self._run(self._open())
        n = self._add(Message(routing_key, payload, timestamp_ms))
        if self._is_due():
            self._run(self._relieve(self._timeout_s))
        return n


class Subscription(SubscriptionFlows, BlockingRunner):
    """An iterator of records that owns its connection; ``close`` it or use ``with``."""

    def __iter__(self) -> Iterator[Line]:
        """Itself."""
        return self

    def __next__(self) -> Line:
        """Return the next record; raise ``UnavailableError`` if the connection breaks."""
        line = self._take() or self._run(self._next_line())
        if line is None:
            self.close()
            raise StopIteration
        return line


class Client(ClientFlows[Subscription], BlockingRunner):
    """Sends commands to the control listener. Broker errors are raised as their own classes."""

    def _subscription(self, request: Subscribe, idle_timeout_s: float | None) -> Subscription:
        return Subscription(self._address, self._tls, self._timeout_s, request, idle_timeout_s)
