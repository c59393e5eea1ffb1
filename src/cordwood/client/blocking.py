"""The blocking client: runs flows with a non-blocking socket and ``poll``."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar, Unpack

from cordwood.client import control_flows
from cordwood.client.control_flows import ClientFlows, Question, Status, SubscriptionFlows, Taken
from cordwood.client.effects import Address, Connect, Effect, Flow, Pause, Transfer, parse_address
from cordwood.client.producer_flows import Limits, ProducerFlows, ProducerOptions
from cordwood.client.send_buffer import Message, Sendable
from cordwood.errors import CordwoodError
from cordwood.protocol.line import commands as c
from cordwood.protocol.line.records import Line

T = TypeVar("T")

_RECEIVE_BYTES = 256 * 1024


class BlockingConnection:
    """One socket and the flows that use it."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
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
        return b""

    def _connect(self, timeout_s: float) -> None:
        self.close()
        opened = socket.create_connection(self._address, timeout_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                opened = self._tls.wrap_socket(opened, server_hostname=self._address.host)
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
                    raise TimeoutError("the broker takes no more data")
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


class Producer:
    """Sends records to the ingress listener; each is stored exactly once, even across reconnects.

    ``name`` identifies the producer across restarts of either side: a producer that returns under
    its name continues after the last record the broker has. Without a name, one is generated. A
    record is queued until ``batch_bytes`` have accumulated, ``flush`` is called or the ``with``
    block ends without an exception. At most ``unconfirmed_bytes_max`` are unconfirmed; above it
    ``send`` waits. Payloads with newlines need ``binary=True``.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        name: str | None = None,
        epoch: int | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        **limits: Unpack[Limits],
    ) -> None:
        """Connects on the first record; ``timeout_s`` limits every call."""
        where = parse_address(address)
        self._timeout_s = timeout_s
        self._flows = ProducerFlows(where, ProducerOptions(name=name, epoch=epoch, **limits))
        self._wire = BlockingConnection(where, tls)
        self._is_opened = False

    @property
    def name(self) -> str:
        """The name of this producer at the broker."""
        return self._flows.name

    @property
    def epoch(self) -> int | None:
        """The epoch that the broker confirmed; before that, the one given."""
        return self._flows.epoch

    @property
    def unconfirmed(self) -> int:
        """The number of records that the broker has not confirmed yet."""
        return len(self._flows.outbox)

    @property
    def confirmed_n(self) -> int:
        """The ``n`` up to which everything is durable; 0 before the first."""
        return self._flows.outbox.confirmed_n

    def send(
        self, routing_key: str | bytes, payload: str | bytes, timestamp_ms: int | None = None
    ) -> int:
        """Queue one record and return its ``n``. The producer's timestamp defaults to now.

        Raises ``UnavailableError`` if it had to wait too long for earlier records. This record is
        numbered and kept anyway, so call ``flush`` instead of sending it again.
        """
        if not self._is_opened:
            self._wire.run(self._flows.open(self._timeout_s))
            self._is_opened = True
        n = self._flows.add(Message(routing_key, payload, timestamp_ms))
        if self._flows.is_due():
            self._wire.run(self._flows.relieve(self._timeout_s))
        return n

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent is durable; reconnects and resends as necessary."""
        self._wire.run(self._flows.flush(self._timeout_s if timeout_s is None else timeout_s))

    def send_and_confirm(self, records: Iterable[Sendable], timeout_s: float | None = None) -> int:
        """Send records, wait until all are durable, each exactly once, and return their number.

        Raises ``UnavailableError`` on timeout. Unconfirmed records are kept, and the next ``flush``
        continues with them.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        count = self._wire.run(self._flows.send_and_confirm(records, limit_s))
        self._is_opened = True
        return count

    def close(self) -> None:
        """Close the connection; records that were not flushed may or may not be stored."""
        self._wire.close()

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush if the block raised no exception; close in any case."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()


class Client:
    """Sends commands to the control listener. Broker errors are raised as their own classes."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects on the first request; ``timeout_s`` limits the wait for a reply."""
        self._address = parse_address(address)
        self._tls = tls
        self._timeout_s = timeout_s
        self._flows = ClientFlows(self._address)
        self._wire = BlockingConnection(self._address, tls)

    def get_ack(self, topic: str | None = None) -> int:
        """Return the last durable seq of the topic (default: the ingress topic); 0 if empty."""
        return self._ask(control_flows.ask_ack(topic))

    def status(self, seq: int, topic: str | None = None) -> Status:
        """Return the state of a record."""
        return self._ask(control_flows.ask_status(seq, topic))

    def subscribe(
        self,
        topic: str,
        *,
        from_seq: int | None = None,
        from_start: bool = False,
        reader: str | None = None,
        idle_timeout_s: float | None = None,
    ) -> Subscription:
        """Stream records on a separate connection.

        It starts at a seq, at the start, at the cursor of the named reader, or else with new
        records only. Iteration ends when nothing arrives for ``idle_timeout_s``; without it, never.
        """
        start = control_flows.plan_start(from_seq=from_seq, from_start=from_start)
        request = c.Subscribe(topic, start, reader)
        flows = SubscriptionFlows(self._address, request, idle_timeout_s)
        return Subscription(flows, BlockingConnection(self._address, self._tls), self._timeout_s)

    def ack(self, topic: str, reader: str, seq: int) -> None:
        """Mark everything up to and including ``seq`` as processed; durable on return."""
        self._ask(control_flows.ask_done(c.Ack(topic, reader, seq)))

    def register(self, topic: str, reader: str | None = None) -> None:
        """Create the topic if it is missing and, with a name, register a reader on it."""
        self._ask(control_flows.ask_done(c.Register(topic, reader)))

    def put(self, topic: str, payload: str | bytes) -> None:
        """Append one record, durable on return. Not repeated if the connection breaks."""
        body = payload.encode() if isinstance(payload, str) else payload
        self._ask(control_flows.ask_done(c.Put(topic, body), is_repeatable=False))

    def get(self, topic: str, reader: str | None = None) -> Taken | None:
        """Take the reader's next record; None if there is none."""
        return self._ask(control_flows.ask_get(topic, reader))

    def state(self, topic: str) -> dict[str, object]:
        """Return the topic's segments."""
        return self._ask(control_flows.ask_json(c.State(topic)))

    def metrics(self) -> dict[str, object]:
        """Return the broker's counters."""
        return self._ask(control_flows.ask_json(c.Metrics()))

    def readers(self, topic: str | None = None) -> dict[str, object]:
        """Return the registered readers and their cursors."""
        return self._ask(control_flows.ask_json(c.Readers(topic)))

    def reset(self, topic: str, reader: str, to: int | c.StartPosition) -> None:
        """Move a reader's cursor: it reads next at ``to``, a seq, ``START`` or ``END``."""
        self._ask(control_flows.ask_done(c.Reset(topic, reader, to)))

    def remove(self, topic: str, reader: str) -> None:
        """Remove a reader; RECLAIM no longer waits for it."""
        self._ask(control_flows.ask_done(c.Remove(topic, reader)))

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change a topic's settings, all or none, with Kafka's names and values."""
        self._ask(control_flows.ask_done(c.Configure(topic, tuple(settings.items()))))

    def cut(self, topic: str) -> int:
        """Seal the active segment now; return how many segments were sealed."""
        return self._ask(control_flows.ask_count(c.Cut(topic)))

    def reclaim(self, topic: str | None = None) -> int:
        """Delete the segments that RECLAIM allows now; return how many were deleted."""
        return self._ask(control_flows.ask_count(c.Reclaim(topic)))

    def close(self) -> None:
        """Close the connection; subscriptions have connections of their own."""
        self._wire.close()

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _ask(self, question: Question[T]) -> T:
        return self._wire.run(self._flows.ask(question, self._timeout_s))


class Subscription:
    """An iterator of records that owns its connection; ``close`` it or use ``with``."""

    def __init__(
        self, flows: SubscriptionFlows, wire: BlockingConnection, timeout_s: float
    ) -> None:
        """Created by ``Client.subscribe``."""
        self._flows = flows
        self._wire = wire
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[Line]:
        """Itself."""
        return self

    def __next__(self) -> Line:
        """Return the next record; raise ``UnavailableError`` if the connection breaks."""
        line = self._flows.take() or self._wire.run(self._flows.next_line(self._timeout_s))
        if line is None:
            self.close()
            raise StopIteration
        return line

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def __enter__(self) -> Self:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
