"""The Kafka door: frames off a socket, requests to the desk, replies in the order of the requests.

A connection's requests are taken one at a time, except that Produce does not hold up what comes
after it: its batches are with the writer, in order, before the next request is looked at, and
its reply follows when they are durable. So one connection fills a group commit, as Kafka's clients
expect when they keep several requests in flight.

A connection costs no task of its own. A request is begun where its last byte arrives, and its
reply is written where its answer becomes known; only a handler that waits runs as a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any

from cordwood.broker.broker import Broker
from cordwood.broker.kafka.caller import Caller
from cordwood.errors import CordwoodError, ProtocolError
from cordwood.net.server import Door, Link, parse_address
from cordwood.wire.kafka.connection import NEED_DATA, KafkaConnection
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

Answer = asyncio.Future[Any]


class KafkaDoor:
    """What the door's connections share."""

    def __init__(self, door: Door, broker: Broker) -> None:
        self.door = door
        self.desk = broker.kafka
        self.frame_bytes_max = broker.config.socket_request_max_bytes
        self.advertised = broker.config.advertised_kafka

    def __call__(self) -> KafkaProtocol:
        """A protocol for a new connection."""
        return KafkaProtocol(self)


class KafkaProtocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, shared: KafkaDoor) -> None:
        self._shared = shared
        self._desk = shared.desk
        self._frames = KafkaConnection(shared.frame_bytes_max)
        self._requests: deque[Request | Unsupported] = deque()  # read, not yet begun
        self._answers: deque[tuple[Request | Unsupported, Answer | None]] = deque()  # begun
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
        self._frames.buffer_updated(nbytes)
        try:
            while (request := self._frames.next_request()) is not NEED_DATA:
                assert isinstance(request, Request | Unsupported)
                self._requests.append(request)
            self._begin(link)
        except ProtocolError as error:
            self._begin(link)  # what came before the broken frame is not its fault
            self._close(link, error)
        if self._reading and len(self._requests) + len(self._answers) > IN_FLIGHT_MAX:
            self._reading = False
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                link.transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Give the place back; nobody waits for what is still under way."""
        if self._link:
            self._shared.door.release(self._link)
        self._requests.clear()
        self._answers.clear()
        if self._holding:
            self._holding.cancel()

    def pause_writing(self) -> None:
        """The peer reads slowly: replies are kept, and in the end its socket is left unread."""
        assert self._link
        self._link.writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        assert self._link
        self._link.writable.set()
        self._reply(self._link)

    # --- requests -------------------------------------------------------------------------

    def _begin(self, link: Link) -> None:
        """Begin requests in order, up to one that others must wait for."""
        while self._requests and not self._holding and not link.transport.is_closing():
            request = self._requests[0]
            is_produce = isinstance(request, Request) and request.api_key == PRODUCE
            if is_produce and not self._desk.has_room:
                self._hold(link, asyncio.ensure_future(self._desk.room()))
                break
            self._requests.popleft()
            answer = self._ask(link, request) if isinstance(request, Request) else None
            self._answers.append((request, answer))
            if answer is None or answer.done():
                continue
            if is_produce:
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
            return asyncio.ensure_future(self._desk.answer(request, caller))
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
            request, answer = answers[0]
            if answer is not None and not answer.done():
                break
            answers.popleft()
            if isinstance(request, Unsupported):
                self._refuse(link, request)
            elif answer is not None:
                self._send_answer(link, request, answer)
        if not self._reading and len(self._requests) + len(answers) < IN_FLIGHT_MAX // 2:
            self._reading = True
            with contextlib.suppress(RuntimeError):
                link.transport.resume_reading()

    def _send_answer(self, link: Link, request: Request, answer: Answer) -> None:
        try:
            message = answer.result()
            if message is not None:
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
