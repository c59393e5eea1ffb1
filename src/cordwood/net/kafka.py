"""The Kafka door: frames off a socket, requests to the desk, replies in the order of the requests.

A connection's requests are taken one at a time, except that Produce does not hold up what comes
after it: its batches are with the writer, in order, before the next request is looked at, and
its reply follows when they are durable. So one connection fills a group commit, as Kafka's clients
expect when they keep several requests in flight.

A connection costs no task of its own. A request is begun where its last byte arrives, and its
reply is written where its answer becomes known; only a handler that waits runs as a task.

Memory is bounded over all connections: requests that are arriving or unanswered by
``decide.request_memory``, replies that peers do not take by ``broker.kafka.outgoing``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Any

from cordwood.broker.broker import Broker
from cordwood.broker.kafka.caller import Caller
from cordwood.broker.kafka.turns import is_large
from cordwood.broker.turns import Turn
from cordwood.config import KIB
from cordwood.decide.request_memory import RequestMemory
from cordwood.errors import CordwoodError, ProtocolError
from cordwood.net.server import Door, Link, parse_address
from cordwood.wire.kafka.connection import NEED_DATA, UNRESERVED_BYTES_MAX, KafkaConnection
from cordwood.wire.kafka.frames import (
    Request,
    Unsupported,
    encode_response,
    unsupported_version_response,
)
from cordwood.wire.kafka.primitives import Buffer
from cordwood.wire.kafka.schema import PRODUCE

logger = logging.getLogger("cordwood.net")

IN_FLIGHT_MAX = 128  # requests read ahead of their replies; then the socket is left unread
TURN_REQUESTS = 32  # of one connection in one turn of the loop
SHARE_BYTES = 64 * KIB  # of requests a connection may hold while memory for them is short
WATCH_S = 1.0  # how often those are looked at who hold memory while others wait for it

Answer = asyncio.Future[Any]


class KafkaDoor:
    """What the door's connections share."""

    def __init__(self, door: Door, broker: Broker) -> None:
        config = broker.config
        self.door = door
        self.desk = broker.kafka
        self.outgoing = broker.outgoing
        self.frame_bytes_max = config.socket_request_max_bytes
        self.advertised = config.advertised_kafka
        self.memory = RequestMemory(max(config.queued_max_request_bytes, self.frame_bytes_max))
        self._watch: asyncio.TimerHandle | None = None

    def __call__(self) -> KafkaProtocol:
        """A protocol for a new connection."""
        return KafkaProtocol(self)

    def reserve(self, connection: KafkaProtocol, size_bytes: int) -> bool:
        """Room for a frame; False: ``KafkaProtocol.go_on`` is called when there is."""
        has_room = self.memory.take(connection, size_bytes, self.door.clock.monotonic())
        if not has_room and self._watch is None:
            self._look_later()
        return has_room

    def admit_waiting(self) -> None:
        """Bytes were given back: let those go on who have their room now."""
        for connection in self.memory.admitted(self.door.clock.monotonic()):
            assert isinstance(connection, KafkaProtocol)
            connection.go_on()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    def _look(self) -> None:
        """While somebody waits for room: close those who hold it and send nothing."""
        self._watch = None
        for connection in self.memory.slow(self.door.clock.monotonic()):
            assert isinstance(connection, KafkaProtocol)
            connection.cut_off()
        if self.memory.waiting:
            self._look_later()


class KafkaProtocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, shared: KafkaDoor) -> None:
        self._shared = shared
        self._desk = shared.desk
        self._memory = shared.memory
        self._frames = KafkaConnection(shared.frame_bytes_max, partial(shared.reserve, self))
        self._requests: deque[tuple[Request | Unsupported, int]] = deque()  # read, not yet begun
        self._answers: deque[tuple[Request | Unsupported, Answer | None, int]] = deque()  # begun
        self._held_bytes = 0  # of both
        self._unsent_bytes = 0  # when the peer stopped taking replies
        self._holding: asyncio.Future[Any] | None = None  # ends before the next is begun
        self._caller: Caller | None = None
        self._link: Link | None = None
        self._reading = True

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place."""
        self._link = self._shared.door.admit(transport)
        if self._link:
            self._link.is_busy = lambda: bool(self._requests or self._answers)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read lands: a large frame straight in its own buffer."""
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        link = self._link
        assert link
        self._shared.door.touch(link)
        if nbytes and self._frames.is_within_large:
            self._memory.arrived(self, nbytes)
        self._frames.buffer_updated(nbytes)
        self._take_requests(link)

    def _take_requests(self, link: Link) -> None:
        """Begin what is whole, and read on while there is room for more."""
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
            self._begin(link)
        except ProtocolError as error:
            self._begin(link)  # what came before the broken frame is not its fault
            self._close(link, error)
        if self._reading and not self._may_read(IN_FLIGHT_MAX):
            self._reading = False
            link.pause()

    def _may_read(self, in_flight_max: int) -> bool:
        """Whether more is to be taken off the socket."""
        if self._frames.is_waiting:
            return False
        if self._held_bytes > SHARE_BYTES and self._memory.is_short:
            return False  # its own replies will bring it on
        return len(self._requests) + len(self._answers) <= in_flight_max

    def go_on(self) -> None:
        """There is room for the frame that waited."""
        link = self._link
        assert link
        self._frames.resume()
        self._take_requests(link)
        self._read_on(link)

    def cut_off(self) -> None:
        """It holds memory that others wait for, and sends too little."""
        assert self._link
        logger.warning(
            "kafka.slow_request peer=%s closed: memory for requests is used up "
            "(queued.max.request.bytes) and this one does not arrive",
            self._link.peer,
        )
        self._link.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """Give the place back; nobody waits for what is still under way."""
        if self._link:
            self._shared.door.release(self._link)
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
        """The peer reads slowly: nothing more is begun, and in the end it is not read from."""
        link = self._link
        assert link
        link.writable.clear()
        self._unsent_bytes = link.transport.get_write_buffer_size()
        self._shared.outgoing.unsent_bytes += self._unsent_bytes

    def resume_writing(self) -> None:
        """It caught up."""
        assert self._link
        self._shared.outgoing.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        self._link.writable.set()
        self._begin(self._link)

    # --- requests -------------------------------------------------------------------------

    def _begin(self, link: Link) -> None:
        """Begin requests in order, up to one that others must wait for."""
        left = TURN_REQUESTS
        turn = Turn() if len(self._requests) > 1 else None
        while self._requests and not self._holding and link.writable.is_set():
            if link.transport.is_closing():
                break
            if not left or (turn and turn.is_over()):
                self._hold(link, _next_turn())
                break
            left -= 1
            request, size_bytes = self._requests[0]
            is_produce = isinstance(request, Request) and request.api_key == PRODUCE
            if is_produce and not self._desk.has_room:
                self._hold(link, asyncio.ensure_future(self._desk.room()))
                break
            self._requests.popleft()
            answer = self._ask(link, request) if isinstance(request, Request) else None
            self._answers.append((request, answer, size_bytes))
            if answer is None or answer.done():
                if self._requests:
                    self._reply(link)  # and see whether the peer takes it
            elif is_produce and not isinstance(answer, asyncio.Task):
                answer.add_done_callback(lambda _: self._reply(link))
            else:
                self._hold(link, answer)
        self._reply(link)

    def _hold(self, link: Link, until: asyncio.Future[Any]) -> None:
        """Begin nothing more before this has ended."""

        def ended(_: asyncio.Future[Any]) -> None:
            self._holding = None
            self._begin(link)

        self._holding = until
        until.add_done_callback(ended)

    def _ask(self, link: Link, request: Request) -> Answer | None:
        """The answer or the promise of one; None where the connection is at its end."""
        caller = self._caller
        if caller is None or caller.client_id != request.client_id:
            caller = self._caller = self._name_caller(link, request.client_id)
        try:
            answer = self._desk.answer(request, caller)
            if asyncio.isfuture(answer):
                return answer
            return asyncio.ensure_future(_encoded(request, answer))
        except CordwoodError as error:  # a body that does not decode: nobody can answer that
            self._close(link, error)
        except Exception as error:  # noqa: BLE001 - our own mistake must not end the loop
            self._fail(link, request, error)
        return None

    def _name_caller(self, link: Link, client_id: str | None) -> Caller:
        if self._shared.advertised:
            host, port = parse_address("advertised.kafka", self._shared.advertised)
        else:
            host, port = link.transport.get_extra_info("sockname")[:2]
        return Caller(link.peer, host, port, client_id)

    # --- replies --------------------------------------------------------------------------

    def _reply(self, link: Link) -> None:
        """Write the replies that are due, in the order their requests came."""
        answers = self._answers
        while answers and link.writable.is_set() and not link.transport.is_closing():
            request, answer, size_bytes = answers[0]
            if answer is not None and not answer.done():
                break
            answers.popleft()
            self._held_bytes -= size_bytes
            self._memory.give_back(self, size_bytes)
            if isinstance(request, Unsupported):
                self._refuse(link, request)
            elif answer is not None:
                self._send_answer(link, request, answer)
        if not self._reading:
            self._read_on(link)
        if self._memory.waiting:
            self._shared.admit_waiting()

    def _read_on(self, link: Link) -> None:
        if not self._reading and self._may_read(IN_FLIGHT_MAX // 2):
            self._reading = True
            link.resume()

    def _send_answer(self, link: Link, request: Request, answer: Answer) -> None:
        try:
            message = answer.result()
            if isinstance(message, list):
                self._send(link, message)
            elif message is not None:
                self._send(link, encode_response(request, message))
        except asyncio.CancelledError:
            link.transport.abort()
        except CordwoodError as error:
            self._close(link, error)
        except Exception as error:  # noqa: BLE001 - our own mistake must not end the loop
            self._fail(link, request, error)

    def _send(self, link: Link, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            link.transport.write(buffers[0])
        else:
            link.transport.writelines(buffers)

    # --- ends -----------------------------------------------------------------------------

    def _refuse(self, link: Link, request: Unsupported) -> None:
        """An API or version we do not serve: told if the protocol has words for it, else closed."""
        reply = unsupported_version_response(request)
        logger.info(
            "kafka.unsupported peer=%s client=%s api=%d version=%d",
            link.peer, request.client_id, request.api_key, request.api_version,
        )  # fmt: skip
        if reply is None:
            link.transport.close()
        else:
            self._send(link, reply)

    def _close(self, link: Link, error: CordwoodError) -> None:
        logger.info("kafka.malformed peer=%s error=%s", link.peer, error)
        link.transport.close()

    def _fail(self, link: Link, request: Request, error: Exception) -> None:
        """Our own mistake: said in the log, and this connection pays alone."""
        logger.error(
            "kafka.failed peer=%s api=%d version=%d",
            link.peer, request.api_key, request.api_version, exc_info=error,
        )  # fmt: skip
        link.transport.abort()


async def _encoded(request: Request, answer: Awaitable[Any]) -> Any:
    """The reply, already as buffers if encoding it takes longer than the loop should."""
    message = await answer
    if message is None or not is_large(message):
        return message
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, encode_response, request, message)


def _next_turn() -> asyncio.Future[None]:
    """Ends once every other connection that is ready was served."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_end_turn, turn)
    return turn


def _end_turn(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # cancelled with its connection
        turn.set_result(None)
