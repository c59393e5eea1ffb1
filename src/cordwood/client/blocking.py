"""The blocking client: flows carried out with a non-blocking socket and ``poll``."""

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
        """Connects when a flow asks for it."""
        self._address = address
        self._tls = tls
        self._socket: socket.socket | None = None

    def run(self, flow: Flow[T]) -> T:
        """Carry a flow out. Interrupted, it closes: what was half written must not go on."""
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
            raise  # an answer like any other; the flow knows what it means for the connection
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
    """Take in what is there; whether the peer has ended."""
    try:
        data = source.recv(_RECEIVE_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    arrived += data
    return not data


def _send(target: socket.socket, unsent: memoryview) -> int | None:
    """Write what fits; None when TLS must read before it can write."""
    if not unsent:
        return 0
    try:
        return target.send(unsent)
    except (BlockingIOError, ssl.SSLWantWriteError):
        return 0
    except ssl.SSLWantReadError:
        return None


def _wait(waited: socket.socket, deadline: float | None, *, is_writing: bool) -> bool:
    """Until the socket can be read (or written, if asked); whether that came in time."""
    poll = select.poll()
    poll.register(waited, select.POLLIN | (select.POLLOUT if is_writing else 0))
    if deadline is None:
        return bool(poll.poll())
    return bool(poll.poll(max(deadline - time.monotonic(), 0) * 1000))


class Producer:
    """Sends records to the ingress listener, each stored exactly once however connections fare.

    ``name`` identifies the producer across restarts of either side: one that comes back under its
    name continues after the last record the broker holds. Without a name, one is made up. A record
    waits until ``batch_bytes`` have gathered, ``flush`` is called or the ``with`` block ends well;
    no more than ``unconfirmed_bytes_max`` are ever unconfirmed, then ``send`` waits. Payloads with
    newlines need ``binary=True``.
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
        """Connects with the first record; ``timeout_s`` is how long any call may take."""
        where = parse_address(address)
        self._timeout_s = timeout_s
        self._flows = ProducerFlows(where, ProducerOptions(name=name, epoch=epoch, **limits))
        self._wire = BlockingConnection(where, tls)
        self._is_opened = False

    @property
    def name(self) -> str:
        """The name the broker knows this producer by."""
        return self._flows.name

    @property
    def epoch(self) -> int | None:
        """The epoch the broker welcomed, once it has."""
        return self._flows.epoch

    @property
    def unconfirmed(self) -> int:
        """How many records the broker has not confirmed yet."""
        return len(self._flows.outbox)

    @property
    def confirmed_n(self) -> int:
        """The ``n`` up to which everything is durable; 0 before the first."""
        return self._flows.outbox.confirmed_n

    def send(
        self, routing_key: str | bytes, payload: str | bytes, timestamp_ms: int | None = None
    ) -> int:
        """Hand over one record; its ``n``. The producer's time is now unless given.

        Raises ``UnavailableError`` if it had to wait too long for earlier records; this one is
        numbered and kept all the same, so ``flush`` again rather than send it again.
        """
        if not self._is_opened:
            self._wire.run(self._flows.open(self._timeout_s))
            self._is_opened = True
        n = self._flows.add(Message(routing_key, payload, timestamp_ms))
        if self._flows.is_due():
            self._wire.run(self._flows.relieve(self._timeout_s))
        return n

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent is durable; reconnects and resends as needed."""
        self._wire.run(self._flows.flush(self._timeout_s if timeout_s is None else timeout_s))

    def send_and_confirm(self, records: Iterable[Sendable], timeout_s: float | None = None) -> int:
        """Send records and wait until all are durable, each once; how many they were.

        Raises ``UnavailableError`` when the time is over; what is unconfirmed is kept, and the
        next ``flush`` goes on with it.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        count = self._wire.run(self._flows.send_and_confirm(records, limit_s))
        self._is_opened = True
        return count

    def close(self) -> None:
        """Close the connection; what was not flushed may or may not be stored."""
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
        """Flush if the block ended well; close in any case."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()


class Client:
    """Asks the control listener. Errors of the broker are raised as the classes they are."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects with the first question; ``timeout_s`` is how long an answer may take."""
        self._address = parse_address(address)
        self._tls = tls
        self._timeout_s = timeout_s
        self._flows = ClientFlows(self._address)
        self._wire = BlockingConnection(self._address, tls)

    def get_ack(self, topic: str | None = None) -> int:
        """The last durable seq of the topic (the ingress topic unless named); 0 when empty."""
        return self._ask(control_flows.ask_ack(topic))

    def status(self, seq: int, topic: str | None = None) -> Status:
        """What became of a record."""
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
        """Records as they come, on a connection of their own.

        From a seq, from the start, from where the named reader stands, or else only new ones.
        Iteration ends when nothing came for ``idle_timeout_s``, and without it never.
        """
        start = control_flows.plan_start(from_seq=from_seq, from_start=from_start)
        request = c.Subscribe(topic, start, reader)
        flows = SubscriptionFlows(self._address, request, idle_timeout_s)
        return Subscription(flows, BlockingConnection(self._address, self._tls), self._timeout_s)

    def ack(self, topic: str, reader: str, seq: int) -> None:
        """The reader has processed everything up to and with ``seq``; durable on return."""
        self._ask(control_flows.ask_done(c.Ack(topic, reader, seq)))

    def register(self, topic: str, reader: str | None = None) -> None:
        """Make the topic if it is missing and, with a name, register a reader on it."""
        self._ask(control_flows.ask_done(c.Register(topic, reader)))

    def put(self, topic: str, payload: str | bytes) -> None:
        """Append one record, durable on return. Not repeated when the connection breaks."""
        body = payload.encode() if isinstance(payload, str) else payload
        self._ask(control_flows.ask_done(c.Put(topic, body), is_repeatable=False))

    def get(self, topic: str, reader: str | None = None) -> Taken | None:
        """Take the reader's next record, or None when there is none."""
        return self._ask(control_flows.ask_get(topic, reader))

    def state(self, topic: str) -> dict[str, object]:
        """The topic's segments."""
        return self._ask(control_flows.ask_json(c.State(topic)))

    def metrics(self) -> dict[str, object]:
        """The broker's counters."""
        return self._ask(control_flows.ask_json(c.Metrics()))

    def readers(self, topic: str | None = None) -> dict[str, object]:
        """The registered readers and where they stand."""
        return self._ask(control_flows.ask_json(c.Readers(topic)))

    def reset(self, topic: str, reader: str, to: int | c.StartPosition) -> None:
        """Move a reader: the next record it gets is ``to``, a seq, ``START`` or ``END``."""
        self._ask(control_flows.ask_done(c.Reset(topic, reader, to)))

    def remove(self, topic: str, reader: str) -> None:
        """Forget a reader; it no longer holds records back."""
        self._ask(control_flows.ask_done(c.Remove(topic, reader)))

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change a topic's settings, all or none; names and values are Kafka's."""
        self._ask(control_flows.ask_done(c.Configure(topic, tuple(settings.items()))))

    def cut(self, topic: str) -> int:
        """Seal the active segment now; how many segments that sealed."""
        return self._ask(control_flows.ask_count(c.Cut(topic)))

    def reclaim(self, topic: str | None = None) -> int:
        """Drop what may go now; how many segments went."""
        return self._ask(control_flows.ask_count(c.Reclaim(topic)))

    def close(self) -> None:
        """Close the connection; subscriptions have their own."""
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
        """Made by ``Client.subscribe``."""
        self._flows = flows
        self._wire = wire
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[Line]:
        """Itself."""
        return self

    def __next__(self) -> Line:
        """The next record; raises ``UnavailableError`` when the connection breaks."""
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
