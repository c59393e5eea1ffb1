"""The Kafka door: frames off a socket, requests to the desk, replies in the order of the requests.

A connection's requests are taken one at a time, except that Produce does not hold up what comes
after it: its batches are with the writer, in order, before the next request is looked at, and
its reply follows when they are durable. So one connection fills a group commit, as Kafka's clients
expect when they keep several requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

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
        self._requests: asyncio.Queue[Request | Unsupported | None] = asyncio.Queue()
        self._replies: asyncio.Queue[tuple[Request, asyncio.Future[tuple[object, ...] | None]]]
        self._replies = asyncio.Queue()
        self._link: Link | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unanswered = 0
        self._reading = True

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place and begin to answer."""
        self._link = self._shared.door.admit(transport)
        if self._link:
            self._link.is_busy = lambda: self._unanswered > 0
            self._tasks = [
                asyncio.ensure_future(self._take(self._link)),
                asyncio.ensure_future(self._reply(self._link)),
            ]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read lands: a large frame straight in its own buffer."""
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        assert self._link
        self._shared.door.touch(self._link)
        self._frames.buffer_updated(nbytes)
        try:
            while (request := self._frames.next_request()) is not NEED_DATA:
                assert isinstance(request, Request | Unsupported)
                self._unanswered += 1
                self._requests.put_nowait(request)
        except ProtocolError as error:
            self._close(self._link, error)
        if self._reading and self._unanswered > IN_FLIGHT_MAX:
            self._reading = False
            self._link.transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """End the tasks and give the place back."""
        if self._link:
            self._shared.door.release(self._link)
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        """The peer reads slowly."""
        assert self._link
        self._link.writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        assert self._link
        self._link.writable.set()

    # --- requests and replies -------------------------------------------------------------

    def _caller(self, link: Link, client_id: str | None) -> Caller:
        if self._shared.advertised:
            host, port = parse_address("advertised.kafka", self._shared.advertised)
        else:
            host, port = link.transport.get_extra_info("sockname")[:2]
        return Caller(link.peer, host, port, client_id)

    async def _take(self, link: Link) -> None:
        """Begin requests in order; wait for each but Produce before the next is begun."""
        caller: Caller | None = None
        while (request := await self._requests.get()) is not None:
            if isinstance(request, Unsupported):
                self._refuse(link, request)
                continue
            if caller is None or caller.client_id != request.client_id:
                caller = self._caller(link, request.client_id)
            if request.api_key == PRODUCE:
                await self._desk.room()
            answer = asyncio.ensure_future(self._answer(link, request, caller))
            self._replies.put_nowait((request, answer))
            if request.api_key != PRODUCE:
                await asyncio.wait([answer])

    async def _answer(
        self, link: Link, request: Request, caller: Caller
    ) -> tuple[object, ...] | None:
        try:
            message: tuple[object, ...] | None = await self._desk.answer(request, caller)
        except CordwoodError as error:  # a body that does not decode: nobody can answer that
            self._close(link, error)
            return None
        except Exception:
            logger.exception(
                "kafka.failed peer=%s api=%d version=%d",
                link.peer, request.api_key, request.api_version,
            )  # fmt: skip
            link.transport.abort()
            return None
        return message

    async def _reply(self, link: Link) -> None:
        """Write replies in the order their requests came."""
        while True:
            request, answer = await self._replies.get()
            message = await answer
            if message is not None and not link.transport.is_closing():
                self._send(link, encode_response(request, message))
                await link.writable.wait()
            self._unanswered -= 1
            if not self._reading and self._unanswered < IN_FLIGHT_MAX // 2:
                self._reading = True
                with contextlib.suppress(RuntimeError):
                    link.transport.resume_reading()

    def _send(self, link: Link, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            link.transport.write(buffers[0])
        else:
            link.transport.writelines(buffers)

    def _refuse(self, link: Link, request: Unsupported) -> None:
        """An API or version we do not serve: told if the protocol has words for it, else closed."""
        self._unanswered -= 1
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
