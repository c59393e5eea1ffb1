"""Writes bad lines to the dead-letter topic, with the reason and the address of the sender.

Bad lines cost more than good ones. They are written in slices that yield to the event loop, and
their connection is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from cordwood.broker.ingest.flow_control import IngressBuffer, PauseReason
from cordwood.broker.ingest.stream import LineStream
from cordwood.broker.produce import ProduceService
from cordwood.broker.topics import TopicService
from cordwood.decide.deadletters import headers_for_line
from cordwood.errors import CordwoodError
from cordwood.log.write.partition import Appended

logger = logging.getLogger("cordwood.broker")

LINES_PER_TURN = 256  # written before yielding to the event loop


class DeadLetterWriter:
    """Writes the bad lines of all ingress connections, each connection's in their order."""

    def __init__(
        self, topics: TopicService, produce: ProduceService, buffer: IngressBuffer, topic: str
    ) -> None:
        self._topics = topics
        self._produce = produce
        self._buffer = buffer
        self._topic = topic
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, stream: LineStream, lines: list[tuple[bytes, str]]) -> None:
        """Write the first lines now, and pause the connection while the others are written."""
        if stream.rejected:
            stream.rejected.extend(lines)
            return  # a task is writing them already
        self._append(stream, lines[:LINES_PER_TURN])
        if len(lines) > LINES_PER_TURN:
            stream.rejected.extend(lines[LINES_PER_TURN:])
            stream.begin()
            stream.flow.pause(PauseReason.BAD_LINES)
            task = asyncio.ensure_future(self._write_rest(stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_rest(self, stream: LineStream) -> None:
        try:
            while stream.rejected:
                await asyncio.sleep(0)
                count = min(LINES_PER_TURN, len(stream.rejected))
                self._append(stream, [stream.rejected.popleft() for _ in range(count)])
        finally:
            stream.end()
        stream.flow.resume(PauseReason.BAD_LINES)

    def _append(self, stream: LineStream, lines: list[tuple[bytes, str]]) -> None:
        self._buffer.make_capacity(len(lines))
        partition = self._topics.get(self._topic).partition(0)
        letters = [(line, headers_for_line(reason, stream.session.peer)) for line, reason in lines]
        try:
            future = self._produce.append_values(partition, letters)
        except CordwoodError as error:  # the broker is stopping
            logger.warning("dead_letter.lost count=%d error=%s", len(lines), error)
        else:
            stream.begin()  # the connection is closed after its dead letters are durable
            future.add_done_callback(partial(_finish, stream))


def _finish(stream: LineStream, future: asyncio.Future[Appended]) -> None:
    _log_lost(future)
    stream.end()


def _log_lost(future: asyncio.Future[Appended]) -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.error("dead_letter.lost error=%s", future.exception())
