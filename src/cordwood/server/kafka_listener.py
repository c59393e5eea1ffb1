"""The Kafka listener: reads frames, dispatches requests, and writes replies in request order.

A connection's requests are processed one at a time, with one exception: Produce does not block the
requests after it. Its batches are queued with the writer, in order, before the next request starts,
and its reply follows when they are durable. One connection can therefore fill a group commit, as
Kafka's clients expect when they keep several requests in flight.

A connection has no task of its own. A request starts in the callback that receives its last byte,
and its reply is written in the callback that completes its answer. Only a handler that waits runs
as a task.

Memory is bounded over all connections: ``decide.request_memory`` limits requests that are arriving
or unanswered, ``broker.kafka.unsent_replies`` limits replies that peers do not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Any

from cordwood.address import parse_address
from cordwood.broker.broker import Broker
from cordwood.broker.session import Session
from cordwood.broker.time_slices import TimeSlice, is_large
from cordwood.config import KIB, BrokerConfig
from cordwood.decide.request_memory import RequestMemory
from cordwood.errors import CordwoodError, ProtocolError
from cordwood.protocol.kafka.connection import NEED_DATA, UNRESERVED_BYTES_MAX, KafkaConnection
from cordwood.protocol.kafka.frames import (
    Request,
    Unsupported,
    encode_response,
    unsupported_version_response,
)
from cordwood.protocol.kafka.primitives import Buffer
from cordwood.protocol.kafka.schema import PRODUCE
from cordwood.server.listeners import Connection, Listener

logger = logging.getLogger("cordwood.server")

IN_FLIGHT_MAX = 128  # requests read ahead of their replies; beyond it the socket is not read
TURN_REQUESTS = 32  # started for one connection per iteration of the event loop
SHARE_BYTES = 64 * KIB  # of requests a connection may hold while request memory is short
WATCH_S = 1.0  # how often to look for slow connections while others wait for memory

Answer = asyncio.Future[Any]


def _memory_bytes(config: BrokerConfig) -> int:
    """Return the memory for requests; the largest one fits."""
    return max(config.queued_max_request_bytes, config.socket_request_max_bytes)


class KafkaListener:
    """State shared by all connections of the listener."""

    def __init__(self, listener: Listener, broker: Broker) -> None:
        config = broker.config
        self.listener = listener
        self.service = broker.kafka
        self.outgoing = broker.outgoing
        self.advertised = (
            parse_address(config.advertised_kafka, setting="advertised.kafka")
            if config.advertised_kafka
            else None
        )
        self.frame_bytes_max = config.socket_request_max_bytes
        self.memory = RequestMemory(_memory_bytes(config))
        self._watch: asyncio.TimerHandle | None = None

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use other limits: of memory from now on, of a request on new connections."""
        self.frame_bytes_max = config.socket_request_max_bytes
        self.memory.bytes_max = _memory_bytes(config)
        self.admit_waiting()

    def __call__(self) -> KafkaProtocol:
        """Create the protocol object of a new connection."""
        return KafkaProtocol(self)

    def session(self, connection: Connection) -> Session:
        """Return the session of a new connection; replies name the advertised address, if set."""
        session = self.listener.session(connection)
        if self.advertised is None:
            return session
        host, port = self.advertised
        return replace(session, host=host, port=port)

    def reserve(self, connection: KafkaProtocol, size_bytes: int) -> bool:
        """Reserve memory for a frame; on False, ``KafkaProtocol.go_on`` follows when it is free."""
        has_capacity = self.memory.take(connection, size_bytes, self.listener.clock.monotonic())
        if not has_capacity and self._watch is None:
            self._look_later()
        return has_capacity

    def admit_waiting(self) -> None:
        """Memory was released: resume the waiting connections that now have theirs."""
        for connection in self.memory.admitted(self.listener.clock.monotonic()):
            assert isinstance(connection, KafkaProtocol)
            connection.go_on()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    def _look(self) -> None:
        """While a connection waits for memory, close those that hold memory and send too little."""
        self._watch = None
        for connection in self.memory.slow(self.listener.clock.monotonic()):
            assert isinstance(connection, KafkaProtocol)
            connection.cut_off()
        if self.memory.waiting:
            self._look_later()


class KafkaProtocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, shared: KafkaListener) -> None:
        self._shared = shared
        self._service = shared.service
        self._memory = shared.memory
        self._frames = KafkaConnection(shared.frame_bytes_max, partial(shared.reserve, self))
        self._requests: deque[tuple[Request | Unsupported, int]] = deque()  # read, not yet started
        self._answers: deque[tuple[Request | Unsupported, Answer | None, int]] = deque()  # started
        self._held_bytes = 0  # of both queues
        self._unsent_bytes = 0  # in the write buffer when the peer stopped reading replies
        self._holding: asyncio.Future[Any] | None = None  # must end before the next request starts
        self._is_held_briefly = False  # for a turn of the loop or for capacity, not for an answer
        self._is_ended = False  # the peer sends no more
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._reading = True

    # --- asyncio callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._connection = self._shared.listener.admit(transport)
        if self._connection:
            self._connection.is_busy = lambda: bool(self._requests or self._answers)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read; a large frame is read into its own buffer."""
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read."""
        connection = self._connection
        assert connection
        self._shared.listener.touch(connection)
        if nbytes and self._frames.is_within_large:
            self._memory.arrived(self, nbytes)
        self._frames.buffer_updated(nbytes)
        self._take_requests(connection)

    def _take_requests(self, connection: Connection) -> None:
        """Start the complete requests, and stop reading when a limit is reached."""
        try:
            frames = self._frames
            while (request := frames.next_request()) is not NEED_DATA:
                size_bytes = frames.frame_bytes
                if size_bytes > UNRESERVED_BYTES_MAX:
                    self._memory.completed(self, size_bytes)
                else:
                    self._memory.hold(size_bytes)
                self._held_bytes += size_bytes
                self._requests.append((request, size_bytes))
            self._begin(connection)
        except ProtocolError as error:
            self._begin(connection)  # the requests before the broken frame are valid
            self._close(connection, error)
        is_held = self._held_bytes or self._frames.is_waiting
        if is_held and self._reading and not self._may_read(IN_FLIGHT_MAX):
            self._reading = False
            connection.pause()

    def _may_read(self, in_flight_max: int) -> bool:
        """Return whether to read more from the socket."""
        if self._frames.is_waiting:
            return False
        if self._held_bytes > SHARE_BYTES and self._memory.is_short:
            return False  # its own replies will free memory and resume it
        return len(self._requests) + len(self._answers) <= in_flight_max

    def go_on(self) -> None:
        """The memory for the waiting frame is reserved: continue."""
        connection = self._connection
        assert connection
        self._frames.resume()
        self._take_requests(connection)
        self._read_on(connection)

    def cut_off(self) -> None:
        """Abort: this connection holds memory that others wait for, and sends too little."""
        assert self._connection
        logger.warning(
            "kafka.slow_request peer=%s closed: memory for requests is used up "
            "(queued.max.request.bytes) and this one does not arrive",
            self._connection.peer,
        )
        self._connection.abort()

    def eof_received(self) -> bool:
        """Start the requests that arrived before the end; a peer with acks=0 closes right away.

        Return whether the connection stays open for that. A TLS connection cannot stay half open,
        so its requests start at once.
        """
        connection = self._connection
        if connection is None:
            return False
        self._is_ended = True
        if connection.transport.get_extra_info("ssl_object") is None:
            return bool(self._requests) and (self._holding is None or self._is_held_briefly)
        while self._requests and (self._holding is None or self._is_held_briefly):
            if self._holding is not None:
                self._holding.cancel()
                self._holding = None
            self._begin(connection)
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """Unregister the connection and release its memory; nobody waits for its answers."""
        if self._connection:
            self._shared.listener.release(self._connection)
        self._requests.clear()
        self._answers.clear()
        self._shared.outgoing.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        if self._holding:
            self._holding.cancel()
        self._memory.leave(self)
        self._memory.give_back(self, self._held_bytes)
        self._held_bytes = 0
        self._shared.admit_waiting()

    def pause_writing(self) -> None:
        """The peer reads slowly: start nothing more; at ``IN_FLIGHT_MAX`` reading stops too."""
        connection = self._connection
        assert connection
        connection.writable.clear()
        self._unsent_bytes = connection.transport.get_write_buffer_size()
        self._shared.outgoing.unsent_bytes += self._unsent_bytes

    def resume_writing(self) -> None:
        """The peer caught up: start the next requests."""
        assert self._connection
        self._shared.outgoing.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        self._connection.writable.set()
        self._begin(self._connection)

    # --- requests -------------------------------------------------------------------------

    def _begin(self, connection: Connection) -> None:
        """Start requests in order, up to one that the following requests must wait for."""
        requests = self._requests
        left = TURN_REQUESTS
        turn = TimeSlice() if len(requests) > 1 else None
        while requests and not self._holding and connection.writable.is_set():
            if connection.transport.is_closing():
                break
            if not left or (turn and turn.is_over()):
                self._hold(connection, _next_turn(), is_brief=True)
                break
            left -= 1
            request, size_bytes = requests[0]
            is_produce = isinstance(request, Request) and request.api_key == PRODUCE
            if is_produce and not self._service.has_capacity:
                capacity = asyncio.ensure_future(self._service.wait_for_capacity())
                self._hold(connection, capacity, is_brief=True)
                break
            requests.popleft()
            answer = self._ask(connection, request) if isinstance(request, Request) else None
            self._answers.append((request, answer, size_bytes))
            if answer is None or answer.done():
                if requests:
                    self._reply(connection)  # this shows whether the peer still reads
            elif is_produce and not isinstance(answer, asyncio.Task):
                answer.add_done_callback(lambda _: self._reply(connection))
            else:
                self._hold(connection, answer)
        self._reply(connection)
        if self._is_ended and not (requests and self._holding and self._is_held_briefly):
            connection.transport.close()

    def _hold(
        self, connection: Connection, until: asyncio.Future[Any], *, is_brief: bool = False
    ) -> None:
        """Start no request before ``until`` is done."""

        def ended(_: asyncio.Future[Any]) -> None:
            if self._holding is until:
                self._holding = None
                self._begin(connection)

        self._holding = until
        self._is_held_briefly = is_brief
        until.add_done_callback(ended)

    def _ask(self, connection: Connection, request: Request) -> Answer | None:
        """Return a future of the answer, or None if the connection is being closed."""
        session = self._session
        if session is None or session.client_id != request.client_id:
            session = self._shared.session(connection)
            session = self._session = replace(session, client_id=request.client_id)
        try:
            answer = self._service.answer(request, session)
            if asyncio.isfuture(answer):
                return answer
            return asyncio.ensure_future(_encoded(request, answer))
        except CordwoodError as error:  # the body does not decode, so there is no reply to send
            self._close(connection, error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the event loop
            self._fail(connection, request, error)
        return None

    # --- replies --------------------------------------------------------------------------

    def _reply(self, connection: Connection) -> None:
        """Write the replies that are ready, in request order."""
        answers = self._answers
        while answers and connection.writable.is_set() and not connection.transport.is_closing():
            request, answer, size_bytes = answers[0]
            if answer is not None and not answer.done():
                break
            answers.popleft()
            self._held_bytes -= size_bytes
            self._memory.give_back(self, size_bytes)
            if isinstance(request, Unsupported):
                self._refuse(connection, request)
            elif answer is not None:
                self._send_answer(connection, request, answer)
        if not self._reading:
            self._read_on(connection)
        if self._memory.waiting:
            self._shared.admit_waiting()

    def _read_on(self, connection: Connection) -> None:
        if not self._reading and self._may_read(IN_FLIGHT_MAX // 2):
            self._reading = True
            connection.resume()

    def _send_answer(self, connection: Connection, request: Request, answer: Answer) -> None:
        try:
            message = answer.result()
            if isinstance(message, list):
                self._send(connection, message)
            elif message is not None:
                self._send(connection, encode_response(request, message))
        except asyncio.CancelledError:
            connection.transport.abort()
        except CordwoodError as error:
            self._close(connection, error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the event loop
            self._fail(connection, request, error)

    def _send(self, connection: Connection, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            connection.transport.write(buffers[0])
        else:
            connection.transport.writelines(buffers)

    # --- refusals and failures ------------------------------------------------------------

    def _refuse(self, connection: Connection, request: Unsupported) -> None:
        """Answer an unsupported API or version if the protocol has a reply for it, else close."""
        reply = unsupported_version_response(request)
        if reply is not None:  # a newer client that finds out which version to use: no event
            self._send(connection, reply)
            return
        logger.info(
            "kafka.unsupported peer=%s client=%s api=%d version=%d",
            connection.peer, request.client_id, request.api_key, request.api_version,
        )  # fmt: skip
        connection.transport.close()

    def _close(self, connection: Connection, error: CordwoodError) -> None:
        logger.info("kafka.malformed peer=%s error=%s", connection.peer, error)
        connection.transport.close()

    def _fail(self, connection: Connection, request: Request, error: Exception) -> None:
        """Log a bug and abort this connection only."""
        logger.error(
            "kafka.failed peer=%s api=%d version=%d",
            connection.peer, request.api_key, request.api_version, exc_info=error,
        )  # fmt: skip
        connection.transport.abort()


async def _encoded(request: Request, answer: Awaitable[Any]) -> Any:
    """Return the reply, encoded on a thread if encoding would block the event loop too long."""
    message = await answer
    if message is None or not is_large(message):
        return message
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, encode_response, request, message)


def _next_turn() -> asyncio.Future[None]:
    """Return a future that ends after the event loop has served every other ready connection."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_end_turn, turn)
    return turn


def _end_turn(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # cancelled with its connection
        turn.set_result(None)
