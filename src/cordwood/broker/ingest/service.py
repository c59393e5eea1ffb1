"""Ingress service: takes blocks of lines, submits batches to the writer, sends ``ACK`` lines back.

A session is one connection. Without a producer name it only sends: nothing is acknowledged, and bad
lines go to the dead letters. After ``HELLO <producer>`` each durable line is acknowledged by its
``n``, and an ``n`` that was stored before is dropped. One connection at a time holds a name. A
second connection takes the name over once all pending work of the first has ended, so that no line
is stored twice between them.

Lines that many sessions send while the writer is busy are gathered and encoded together, because
one kernel call costs as much as encoding fifty lines. A large block is encoded on a thread while
the event loop reads the next one; whatever else its session sends meanwhile is processed after it.

Backpressure: a session may read lines while fewer than ``ingress.buffer`` records, and a bounded
number of bytes, wait for the writer. At the limit ``block`` stops reading sockets until a commit
frees capacity; ``drop_oldest`` drops the oldest waiting lines of nameless sessions and counts them.
A session that sent HELLO was promised an answer, so it always waits instead.

Bad lines cost more than good ones. They are written in slices that yield to the event loop, and
their connection is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cordwood.batch.header import parse_headers
from cordwood.batch.kernels.loader import load_kernels_soon
from cordwood.batch.lines import (
    LineBatch,
    LineBatches,
    LineProducer,
    count_lines,
    encode_blocks,
    encode_frames,
    encode_lines,
    kernels_ready,
)
from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.broker.produce import ProduceService
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import KIB, MIB, BrokerConfig
from cordwood.decide.deadletters import headers_for_line
from cordwood.errors import CordwoodError, Overloaded, StaleProducer
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended, Outcome, Partition
from cordwood.log.write.writer import Writer

T = TypeVar("T")

logger = logging.getLogger("cordwood.broker")

BUFFER_BYTES_MAX = 16 * MIB  # bytes that may wait for the writer, however few records that is
GATHER_BYTES_MAX = 64 * KIB  # gathered blocks are flushed once they reach this size
ASIDE_BYTES = 64 * KIB  # from this size on, a thread switch costs less than encoding on the loop
ASIDE_BYTES_MAX = 4 * MIB  # blocks being encoded on the thread; no socket is read beyond this
REJECTS_PER_TURN = 256  # bad lines written before yielding to the event loop


@dataclass(slots=True)
class IngressStats:
    """Counters for the metrics."""

    records: int = 0
    bytes: int = 0
    duplicates: int = 0
    rejected: int = 0
    dropped: int = 0
    blocked: int = 0  # how often a socket was left unread for lack of capacity


@dataclass(slots=True, eq=False)
class IngressSession:
    """The state of one ingress connection."""

    peer: str
    partition: Partition
    tell: Callable[[bytes], None]  # send a reply back
    close: Callable[[], None]  # close the connection
    hold: Callable[[], None]  # check whether to keep reading
    resume: Callable[[str], None]  # read again: this reason to pause has gone
    name: str | None = None
    producer: LineProducer | None = None
    under_way: int = 0
    is_gathered: bool = False  # a block of its lines waits to be encoded
    encoding_tasks: int = 0  # its tasks running on the encoding thread
    failed: bool = False
    is_gone: bool = False  # its connection is closed
    acked_n: int | None = None  # to acknowledge with the next commit
    rejects: deque[tuple[bytes, str]] = field(default_factory=deque)  # bad lines not yet written
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def advance(self, last_n: int | None) -> None:
        """Record the last encoded ``n``; lines up to it are stored or on their way to the log."""
        if self.producer is not None:
            producer_id, epoch, _ = self.producer
            self.producer = LineProducer(producer_id, epoch, last_n)


class IngressService:
    """All ingress sessions, and which of them holds which producer name."""

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
        self._produce = produce
        self._writer = writer
        self._gathered: list[tuple[IngressSession, bytes | memoryview]] = []
        self._gathered_bytes = 0
        self._gathered_lines = 0
        self._aside = OrderedExecutor("cordwood-encode")
        self._named: dict[str, IngressSession] = {}
        self._waiting: list[IngressSession] = []
        self._to_ack: list[IngressSession] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.stats = IngressStats()

    async def open(
        self,
        peer: str,
        tell: Callable[[bytes], None],
        close: Callable[[], None],
        hold: Callable[[], None],
        resume: Callable[[str], None],
    ) -> IngressSession:
        """Open a session on the ingress topic; creates it and the dead-letter topic if missing."""
        load_kernels_soon()  # not needed while idle; until loaded, lines are encoded in Python
        await self._topics.ensure(self._config.dead_letter_topic)
        topic = await self._topics.ensure(self._config.ingress_topic)
        partition = await self._topics.open_partition(topic.name, 0)
        session = IngressSession(peer, partition, tell, close, hold, resume)
        session.drained.set()
        return session

    def must_wait(self, session: IngressSession) -> bool:
        """Return whether the session's socket must stay unread until there is capacity."""
        if self._aside.bytes >= ASIDE_BYTES_MAX:
            return True
        may_drop = self._config.ingress_overflow == "drop_oldest" and session.producer is None
        return not may_drop and not self.has_capacity()

    def has_capacity(self) -> bool:
        """Return whether another block of lines may be read from a socket."""
        lines = self._writer.waiting_records + self._gathered_lines + self._aside.lines
        size_bytes = self._writer.waiting_bytes + self._aside.bytes
        return lines < self._config.ingress_buffer and size_bytes < BUFFER_BYTES_MAX

    def wait_for_capacity(self, session: IngressSession) -> None:
        """Have ``session.resume`` called once there is capacity again."""
        self.stats.blocked += 1
        self._waiting.append(session)

    def on_commit(self) -> None:
        """Send the pending acknowledgements of a commit, and let blocked sessions read again."""
        to_ack, self._to_ack = self._to_ack, []
        for session in to_ack:
            self._tell_ack(session)
        if self.has_capacity():
            self._let_read()

    def _let_read(self) -> None:
        waiting, self._waiting = self._waiting, []
        for session in waiting:
            session.resume("room")

    async def hello(self, session: IngressSession, name: str, epoch: int | None) -> tuple[int, int]:
        """Take the producer name; returns its epoch and its last durable ``n`` (0 = none yet)."""
        if session.name is not None:
            raise StaleProducer(f"this connection already speaks for {session.name}")
        session.name = name
        while (before := self._named.get(name)) is not None:
            await self._take_over(before, name)
        self._named[name] = session  # from here on, another HELLO has to fence this session
        identity = await self._topics.line_producer(name, epoch)
        if session.failed:
            raise StaleProducer(f"another connection said HELLO {name}")
        last = session.partition.producers.last_sequence(identity.producer_id, identity.epoch)
        session.producer = LineProducer(identity.producer_id, identity.epoch, last)
        return identity.epoch, last or 0

    async def _take_over(self, before: IngressSession, name: str) -> None:
        """End the session that holds the name, and wait for its pending work."""
        if not before.failed:
            before.failed = True
            before.tell(b"ERR PRODUCER_FENCED another connection said HELLO " + name.encode())
            before.close()
        await before.drained.wait()
        if self._named.get(name) is before:
            del self._named[name]

    def lines(self, session: IngressSession, block: bytes | memoryview) -> None:
        """Take a block of complete lines; the hot path."""
        if session.failed:
            return
        if session.is_gathered:
            self.flush()  # the next block needs this one's last n to find duplicates
        if session.encoding_tasks or (len(block) >= ASIDE_BYTES and kernels_ready()):
            self._encode_in_order(session, block)
            return
        session.is_gathered = True
        self._begin(session)
        self._gathered.append((session, block))
        self._gathered_bytes += len(block)
        is_little = self._gathered_bytes < GATHER_BYTES_MAX
        if is_little:
            self._gathered_lines += count_lines(block)
        if not is_little or not self.has_capacity():
            self.flush()
        elif len(self._gathered) == 1:
            self._writer.offer(self.flush)

    def flush(self) -> None:
        """Encode and submit the gathered blocks."""
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = self._gathered_lines = 0
        if not gathered:
            return
        encoded = encode_blocks(
            [(block, session.producer) for session, block in gathered], self._clock.now_ms()
        )
        for (session, _), fate in zip(gathered, encoded.blocks, strict=True):
            session.is_gathered = False
            session.advance(fate.last_n)
        if len(gathered) > 1 and encoded.is_plain and _are_alike([who for who, _ in gathered]):
            self._submit_together([session for session, _ in gathered], encoded)
        else:
            for (session, block), batch in zip(gathered, encoded.each(), strict=True):
                self._store(session, block, batch)
        has_capacity = self.has_capacity()
        for session, _ in gathered:
            if session.rejects or not has_capacity:
                session.hold()

    def _encode_in_order(self, session: IngressSession, block: bytes | memoryview) -> None:
        """Encode and submit this block after the session's earlier tasks on the thread."""
        now_ms = self._clock.now_ms()

        def encode() -> LineBatch:
            encoded = encode_lines(block, now_ms, producer=session.producer)
            session.advance(encoded.last_n)  # safe: nothing else encodes for the session meanwhile
            return encoded

        def store(encoded: LineBatch) -> None:
            self._store(session, block, encoded)
            if session.rejects or not self.has_capacity():
                session.hold()

        self._begin(session)
        self._do_aside(session, encode, store, count_lines(block), len(block))
        if not self.has_capacity():
            session.hold()

    def _do_aside(
        self,
        session: IngressSession,
        work: Callable[[], T],
        then: Callable[[T], None],
        lines: int = 0,
        size_bytes: int = 0,
    ) -> None:
        def done(future: asyncio.Future[T]) -> None:
            session.encoding_tasks -= 1
            try:
                result = future.result()
            except BaseException:  # a bug: no line after this one may be accepted
                session.failed = True
                self._end(session)
                session.close()
                raise
            then(result)
            if self._aside.bytes < ASIDE_BYTES_MAX and not self.must_wait(session):
                self._let_read()

        session.encoding_tasks += 1
        self._aside.run(work, done, lines=lines, size_bytes=size_bytes)

    def frames(self, session: IngressSession, bodies: tuple[bytes, ...]) -> None:
        """Take messages that arrived as frames; like ``lines``."""
        if session.failed:
            return
        self._begin(session)
        encoded = encode_frames(bodies, self._clock.now_ms(), producer=session.producer)
        session.advance(encoded.last_n)
        self._store(session, b"".join(bodies) if encoded.rejected else b"", encoded)

    def _store(
        self, session: IngressSession, block: bytes | memoryview, encoded: LineBatch
    ) -> None:
        """Submit encoded lines to the writer, and rejected ones to the dead letters."""
        if encoded.rejected:
            self._reject_all(
                session,
                [(bytes(block[start:end]), reason) for start, end, reason in encoded.rejected],
            )
        self.stats.duplicates += encoded.duplicates
        if encoded.count and not session.failed:
            try:
                self._submit(session, encoded.data, encoded.count, encoded.last_n)
            except CordwoodError as error:  # the broker is stopping
                self._end(session)
                self._fail(session, error)
            return
        self._end(session)
        if encoded.duplicates and session.under_way == 0 and not session.failed:
            session.acked_n = encoded.last_n
            self._tell_ack(session)

    def _submit(
        self, session: IngressSession, data: bytearray, count: int, last_n: int | None
    ) -> None:
        is_nameless = session.producer is None
        if is_nameless and not self.has_capacity():
            self._drop_oldest(count)

        def done(outcome: Outcome) -> None:
            self._settle(session, outcome, last_n)

        append = Append(session.partition, data, parse_headers(data), count, done)
        append.droppable = is_nameless
        self._hand_over(append)

    def _submit_together(self, sessions: list[IngressSession], encoded: LineBatches) -> None:
        """Submit the lines of many sessions as one append, so that they share its cost."""

        def done(outcome: Outcome) -> None:
            for session, fate in zip(sessions, encoded.blocks, strict=True):
                self._settle(session, outcome, fate.last_n)

        records = sum([fate.records for fate in encoded.blocks])
        data = encoded.data
        try:
            self._hand_over(Append(sessions[0].partition, data, parse_headers(data), records, done))
        except CordwoodError as error:  # the broker is stopping
            for session in sessions:
                self._end(session)
                self._fail(session, error)

    def _hand_over(self, append: Append) -> None:
        """Submit to the writer.

        Lines have no other copy, so the append waits for disk space. Their ``n`` may have gaps, so
        the sequence check is not strict.
        """
        append.hold = True
        append.strict = False
        append.is_key_checked = True  # a line without a routing key is a dead letter
        self._writer.submit(append)
        self.stats.records += append.records
        self.stats.bytes += len(append.data)

    def _begin(self, session: IngressSession) -> None:
        session.under_way += 1
        session.drained.clear()

    def _end(self, session: IngressSession) -> None:
        session.under_way -= 1
        if session.under_way == 0:
            session.drained.set()
            if session.is_gone:
                self._free_name(session)

    def _drop_oldest(self, count: int) -> None:
        if self._config.ingress_overflow != "drop_oldest":
            return  # these lines were read before the buffer was full
        for append in self._writer.evict(count):
            self.stats.dropped += append.records
            append.done(Overloaded("dropped: the buffer before the writer is full"))

    def _settle(self, session: IngressSession, outcome: Outcome, last_n: int | None) -> None:
        self._end(session)
        if isinstance(outcome, Appended):
            if session.producer is not None and not session.failed:
                if session.acked_n is None:
                    self._to_ack.append(session)
                session.acked_n = last_n
        elif not isinstance(outcome, Overloaded):  # a drop is counted and is no failure
            self._fail(session, outcome)

    def _tell_ack(self, session: IngressSession) -> None:
        """Acknowledge all blocks of a commit with one line: the newest n covers the others."""
        if session.acked_n is not None:
            session.tell(b"ACK %d" % session.acked_n)
            session.acked_n = None

    def _fail(self, session: IngressSession, error: CordwoodError) -> None:
        """End the session after a failed append: nothing after it may be acknowledged."""
        if session.failed:
            return
        self._tell_ack(session)  # earlier lines are durable
        session.failed = True
        logger.error("ingress.failed peer=%s error=%s", session.peer, error)
        session.tell(f"ERR {error.name} {error}".encode())
        session.close()

    # --- bad lines ------------------------------------------------------------------------

    def reject(self, session: IngressSession, line: bytes, reason: str) -> None:
        """Send a bad line to the dead letters, with the reason and the peer's address."""
        if session.is_gathered:
            self.flush()  # keeps bad lines in their order of arrival
        if not session.encoding_tasks:
            self._reject_all(session, [(line, reason)])
            return

        def follow(_: None) -> None:
            self._reject_all(session, [(line, reason)])
            self._end(session)

        self._begin(session)
        self._do_aside(session, lambda: None, follow)

    def _reject_all(self, session: IngressSession, lines: list[tuple[bytes, str]]) -> None:
        self.stats.rejected += len(lines)
        if session.rejects:
            session.rejects.extend(lines)
            return  # a task is writing them already
        self._write_letters(session, lines[:REJECTS_PER_TURN])
        if len(lines) > REJECTS_PER_TURN:
            session.rejects.extend(lines[REJECTS_PER_TURN:])
            self._begin(session)
            task = asyncio.ensure_future(self._write_rejects(session))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_rejects(self, session: IngressSession) -> None:
        try:
            while session.rejects:
                await asyncio.sleep(0)
                count = min(REJECTS_PER_TURN, len(session.rejects))
                self._write_letters(session, [session.rejects.popleft() for _ in range(count)])
        finally:
            self._end(session)
        session.resume("rejects")

    def _write_letters(self, session: IngressSession, lines: list[tuple[bytes, str]]) -> None:
        if not self.has_capacity():
            self._drop_oldest(len(lines))
        partition = self._topics.get(self._config.dead_letter_topic).partition(0)
        letters = [(line, headers_for_line(reason, session.peer)) for line, reason in lines]
        try:
            future = self._produce.append_values(partition, letters)
        except CordwoodError as error:  # the broker is stopping
            logger.warning("dead_letter.lost count=%d error=%s", len(lines), error)
        else:
            future.add_done_callback(_log_lost_letters)

    # --- shutdown -------------------------------------------------------------------------

    async def stop(self) -> None:
        """Submit the gathered blocks, and those being encoded."""
        self.flush()
        await self._aside.stop()

    def leave(self, session: IngressSession) -> None:
        """Note that the connection is closed; its name is free once its pending work has ended."""
        session.is_gone = True
        if session in self._waiting:
            self._waiting.remove(session)
        # With lines still pending the name stays taken: a successor waits for them in ``hello``.
        if session.under_way == 0:
            self._free_name(session)

    def _free_name(self, session: IngressSession) -> None:
        if session.name is not None and self._named.get(session.name) is session:
            del self._named[session.name]


def _are_alike(sessions: list[IngressSession]) -> bool:
    """Return whether their lines may share an append: named, not failed, same partition."""
    partition = sessions[0].partition
    return not any(
        session.producer is None or session.failed or session.partition is not partition
        for session in sessions
    )


def _log_lost_letters(future: asyncio.Future[Appended]) -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.error("dead_letter.lost error=%s", future.exception())
