"""Ingress service: takes blocks of lines, submits batches to the writer, sends ``ACK`` lines back.

A stream is the lines of one connection. Without a producer name it only sends: nothing is
acknowledged, and bad lines go to the dead letters. After ``HELLO <producer>`` each durable line is
acknowledged by its ``n``, and an ``n`` that was stored before is dropped.

Lines that many connections send while the writer is busy are gathered and encoded together, because
one kernel call costs as much as encoding fifty lines. A large block is encoded on a thread while
the event loop reads the next one; whatever else its connection sends meanwhile is processed after
it.

Backpressure: a connection may read lines while fewer than ``ingress.buffer`` records, and a bounded
number of bytes, wait for the writer. At the limit ``block`` stops reading sockets until a commit
frees capacity (``flow_control``); ``drop_oldest`` drops the oldest waiting lines of nameless
connections and counts them. A connection that sent HELLO was promised an answer, so it always waits
instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cordwood.batch.header import parse_headers
from cordwood.batch.kernels.loader import load_kernels_soon
from cordwood.batch.lines import (
    LineBatch,
    LineBatches,
    count_lines,
    encode_blocks,
    encode_frames,
    encode_lines,
    kernels_ready,
)
from cordwood.broker.ingest.dead_letters import DeadLetterWriter
from cordwood.broker.ingest.flow_control import (
    FlowControl,
    IngressBuffer,
    IngressSocket,
    IngressStats,
)
from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.broker.ingest.producer_names import ProducerNames
from cordwood.broker.ingest.stream import LineStream
from cordwood.broker.produce import ProduceService
from cordwood.broker.session import Session
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import KIB, BrokerConfig
from cordwood.errors import CordwoodError, Overloaded
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended, Outcome
from cordwood.log.write.writer import Writer
from cordwood.protocol.line.replies import encode_error

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

GATHER_BYTES_MAX = 64 * KIB  # gathered blocks are flushed once they reach this size
THREAD_BYTES = 64 * KIB  # from this size on, a thread switch costs less than encoding on the loop


class IngressService:
    """The streams of all ingress connections, up to the writer and back."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicService,
        produce: ProduceService,
        writer: Writer,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._writer = writer
        self._gathered: list[tuple[LineStream, bytes | memoryview]] = []
        self._gathered_bytes = 0
        self._to_ack: list[LineStream] = []
        self.stats = IngressStats()
        self.names = ProducerNames(topics)
        self.encoder = OrderedExecutor("cordwood-encode")
        self.encode: Callable[..., LineBatch] = encode_lines
        self.thread_bytes = THREAD_BYTES  # blocks of this size are encoded on the thread
        self.buffer = IngressBuffer(
            writer,
            self.encoder,
            self.stats,
            lines_max=config.ingress_buffer,
            drops_oldest=config.ingress_overflow == "drop_oldest",
        )
        self._dead_letters = DeadLetterWriter(
            topics, produce, self.buffer, config.dead_letter_topic
        )

    async def open(self, session: Session, socket: IngressSocket, flow: FlowControl) -> LineStream:
        """Open a stream to the ingress topic; creates it and the dead-letter topic if missing."""
        load_kernels_soon()  # not needed while idle; until loaded, lines are encoded in Python
        await self._topics.ensure(self._config.dead_letter_topic)
        topic = await self._topics.ensure(self._config.ingress_topic)
        partition = await self._topics.open_partition(topic.name, 0)
        return LineStream(session, partition, socket, flow, self.names.release)

    async def stop(self) -> None:
        """Submit the gathered blocks, and those being encoded."""
        self.flush()
        await self.encoder.stop()

    def on_commit(self) -> None:
        """Send the pending acknowledgements of a commit, and let blocked connections read again."""
        to_ack, self._to_ack = self._to_ack, []
        for stream in to_ack:
            stream.send_ack()
        if self.buffer.waiting and self.buffer.has_capacity():
            self.buffer.release()

    # --- encoding -------------------------------------------------------------------------

    def lines(self, stream: LineStream, block: bytes | memoryview) -> None:
        """Take a block of complete lines; the hot path."""
        if stream.failed:
            return
        if stream.is_gathered:
            self.flush()  # the next block needs this one's last n to find duplicates
        if stream.encoding_tasks or (len(block) >= self.thread_bytes and kernels_ready()):
            self._encode_in_order(stream, block)
            return
        stream.is_gathered = True
        stream.begin()
        self._gathered.append((stream, block))
        self._gathered_bytes += len(block)
        if self._gathered_bytes >= GATHER_BYTES_MAX:
            self.flush()
            return
        self.buffer.gathered_lines += count_lines(block)
        if not self.buffer.has_capacity():
            self.flush()
        elif len(self._gathered) == 1:
            self._writer.on_writer_idle(self.flush)

    def flush(self) -> None:
        """Encode and submit the gathered blocks."""
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = self.buffer.gathered_lines = 0
        if not gathered:
            return
        encoded = encode_blocks(
            [(block, stream.producer) for stream, block in gathered], self._clock.now_ms()
        )
        for (stream, _), result in zip(gathered, encoded.blocks, strict=True):
            stream.is_gathered = False
            stream.advance(result.last_n)
        if len(gathered) > 1 and encoded.is_plain and _are_alike([who for who, _ in gathered]):
            self._submit_together([stream for stream, _ in gathered], encoded)
        else:
            for (stream, block), batch in zip(gathered, encoded.each(), strict=True):
                self._store(stream, block, batch)
        if not self.buffer.has_capacity():
            for stream, _ in gathered:
                stream.flow.check()

    def frames(self, stream: LineStream, bodies: tuple[bytes, ...]) -> None:
        """Take messages that arrived as frames; like ``lines``."""
        if stream.failed:
            return
        stream.begin()
        encoded = encode_frames(bodies, self._clock.now_ms(), producer=stream.producer)
        stream.advance(encoded.last_n)
        self._store(stream, b"".join(bodies) if encoded.rejected else b"", encoded)

    def reject(self, stream: LineStream, line: bytes, reason: str) -> None:
        """Send a bad line to the dead letters, with the reason and the peer's address."""
        if stream.is_gathered:
            self.flush()  # keeps bad lines in their order of arrival
        if not stream.encoding_tasks:
            self._reject(stream, [(line, reason)])
            return

        def follow(_: None) -> None:
            self._reject(stream, [(line, reason)])
            stream.end()

        stream.begin()
        self._run_in_order(stream, lambda: None, follow)

    def _encode_in_order(self, stream: LineStream, block: bytes | memoryview) -> None:
        """Encode and submit this block after the stream's earlier tasks on the thread."""
        now_ms = self._clock.now_ms()

        def encode() -> LineBatch:
            encoded = self.encode(block, now_ms, producer=stream.producer)
            stream.advance(encoded.last_n)  # safe: nothing else encodes for the stream meanwhile
            return encoded

        stream.begin()
        store = partial(self._store, stream, block)
        self._run_in_order(stream, encode, store, count_lines(block), len(block))
        stream.flow.check()

    def _run_in_order(
        self,
        stream: LineStream,
        work: Callable[[], T],
        then: Callable[[T], None],
        lines: int = 0,
        size_bytes: int = 0,
    ) -> None:
        def done(future: asyncio.Future[T]) -> None:
            stream.encoding_tasks -= 1
            try:
                result = future.result()
            except BaseException:  # a bug: no line after this one may be accepted
                stream.failed = True
                stream.end()
                stream.socket.close()
                raise
            then(result)
            if self.buffer.waiting and not self.buffer.is_closed_to(stream.flow):
                self.buffer.release()

        stream.encoding_tasks += 1
        self.encoder.run(work, done, lines=lines, size_bytes=size_bytes)

    # --- to the writer and back -----------------------------------------------------------

    def _store(self, stream: LineStream, block: bytes | memoryview, encoded: LineBatch) -> None:
        """Submit encoded lines to the writer, and rejected ones to the dead letters."""
        if encoded.rejected:
            self._reject(
                stream,
                [(bytes(block[start:end]), reason) for start, end, reason in encoded.rejected],
            )
        self.stats.duplicates += encoded.duplicates
        if encoded.count and not stream.failed:
            self._submit(stream, encoded)
            return
        stream.end()
        if encoded.duplicates and stream.pending == 0 and not stream.failed:
            stream.acked_n = encoded.last_n
            stream.send_ack()

    def _reject(self, stream: LineStream, lines: list[tuple[bytes, str]]) -> None:
        self.stats.rejected += len(lines)
        self._dead_letters.write(stream, lines)

    def _submit(self, stream: LineStream, encoded: LineBatch) -> None:
        is_nameless = stream.producer is None
        if is_nameless:
            self.buffer.make_capacity(encoded.count)

        def done(outcome: Outcome) -> None:
            self._settle(stream, outcome, encoded.last_n)

        data = encoded.data
        append = Append(stream.partition, data, parse_headers(data), encoded.count, done)
        append.droppable = is_nameless
        self._hand_over(append)

    def _submit_together(self, streams: list[LineStream], encoded: LineBatches) -> None:
        """Submit the lines of many streams as one append, so that they share its cost."""

        def done(outcome: Outcome) -> None:
            for stream, result in zip(streams, encoded.blocks, strict=True):
                self._settle(stream, outcome, result.last_n)

        records = sum([result.records for result in encoded.blocks])
        data = encoded.data
        self._hand_over(Append(streams[0].partition, data, parse_headers(data), records, done))

    def _hand_over(self, append: Append) -> None:
        """Submit to the writer.

        Lines have no other copy, so the append waits for disk space. Their ``n`` may have gaps, so
        the sequence check is not strict.
        """
        append.hold = True
        append.strict = False
        append.is_key_checked = True  # a line without a routing key is a dead letter
        try:
            self._writer.submit(append)
        except CordwoodError as error:  # the broker is stopping
            append.done(error)
        else:
            self.stats.records += append.records

    def _settle(self, stream: LineStream, outcome: Outcome, last_n: int | None) -> None:
        stream.end()
        if isinstance(outcome, Appended):
            if stream.producer is not None and not stream.failed:
                if stream.acked_n is None:
                    self._to_ack.append(stream)
                stream.acked_n = last_n
        elif not isinstance(outcome, Overloaded):  # a drop is counted and is no failure
            _fail(stream, outcome)


def _fail(stream: LineStream, error: CordwoodError) -> None:
    """End the stream after a failed append: nothing after it may be acknowledged."""
    if stream.failed:
        return
    stream.send_ack()  # earlier lines are durable
    stream.failed = True
    logger.error("ingress.failed peer=%s error=%s", stream.session.peer, error)
    stream.socket.send(encode_error(error))
    stream.socket.close()


def _are_alike(streams: list[LineStream]) -> bool:
    """Return whether their lines may share an append: named, not failed, same partition."""
    partition = streams[0].partition
    return not any(
        stream.producer is None or stream.failed or stream.partition is not partition
        for stream in streams
    )
