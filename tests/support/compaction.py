"""A harness for compaction tests: a real store and service, without sockets or Spark.

``CompactionHarness`` is a store with the broker's ``CompactionService``; its ``compact()`` runs the
same job as Spark, with the tasks one after another in this process. ``Chance`` fills a partition
with random records, and ``Oracle`` compacts the same log record by record in plain Python, by
Kafka's rules as ``decide.compaction`` states them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.batch.records import decode_batch, encode_batch, encode_marker, parse_marker
from cordwood.broker.jobs.compaction import CompactionService
from cordwood.config import BrokerConfig
from cordwood.decide.compaction import BatchAction, is_kept, is_past, plan_batch
from cordwood.decide.roll import RollReason
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import AsyncMetadata
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import Codec, Header, Record, TopicPartition
from cordwood.pipeline.compact.job import run_due
from cordwood.pipeline.compact.pass_result import PassOutcome
from cordwood.protocol.api.call import Call
from cordwood.protocol.api.codec import decode_json
from cordwood.protocol.api.compaction import CompactionCall, CompactionStatus, ListCompaction
from cordwood.server.embedded import open_embedded_store
from support.clock import ManualClock
from support.crash import QuickFiles
from support.logs import headers_of

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
KEEP_NOTHING_SMALL = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def in_process(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    """Run tasks one after another, without Spark."""
    return [function(item) for item in items]


class _Inline:
    """Replaces the topic service and the swap for the compaction service, without delay."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.before_swap = lambda job: None

    def get(self, name: str):
        return self.store.topic(name)

    async def open_topic(self, name: str):
        return self.store.topic(name)

    async def on_writer(self, change):
        return change()

    async def in_verifying(self, act):
        return act()

    async def swap(self, verified) -> None:
        self.before_swap(verified.manifest.job)
        self.store.segments.apply_job(verified)


class CompactionHarness:
    """An open data directory with a compaction service; also the API that a job calls."""

    def __init__(
        self,
        data: Path,
        config: Mapping[str, object] | None = None,
        *,
        partitions: int = 1,
        files: Files | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.data = data
        self.clock = clock or ManualClock(NOW_MS)
        self.files = files or QuickFiles()
        self.store = open_embedded_store(data, BrokerConfig(), self.clock, self.files)
        if "t" not in self.store.topics:
            self.store.create_topic("t", partitions, {**KEEP_NOTHING_SMALL, **(config or {})})
        self.metadata = AsyncMetadata(self.store.metadata)
        self.inline = _Inline(self.store)
        self.service = CompactionService(
            self.store, self.inline, self.inline, self.clock, self.metadata
        )
        self.calls: list[Call[Any]] = []
        self.status: CompactionStatus | None = None  # the answer to ``ListCompaction``

    @property
    def partition(self) -> Partition:
        return self.store.partition(TP)

    def call(self, request: CompactionCall | ListCompaction) -> Any:
        """Handle a request as the broker does for a job."""
        if isinstance(request, ListCompaction):
            return self.status
        self.calls.append(request)
        return asyncio.run(self.service.handle(request))

    def post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Handle a request as the HTTP listener does: JSON in, JSON out."""
        reply = self.call(decode_json(CompactionCall, json.dumps(body).encode()))
        return msgspec.to_builtins(reply)

    def compact(self, *, demand: bool = True, **options: Any) -> list[PassOutcome]:
        """Compact what is due, or on demand the whole topic thoroughly."""
        topic = "t" if demand else None
        return run_due(self, options.pop("run", in_process), topic=topic, demand=demand, **options)

    def compact_well(self, **options: Any) -> PassOutcome:
        """Compact one partition; the pass must not fail."""
        (outcome,) = self.compact(**options)
        assert not outcome.error, outcome.error
        return outcome

    # --- appending ----------------------------------------------------------------------------

    def append(self, *records: tuple[bytes | None, bytes | None], **fields: Any) -> int:
        """Append one batch of (key, value) pairs and return its base offset."""
        now_ms = fields.pop("time_ms", self.clock.now_ms())
        partition = fields.pop("partition", self.partition)
        made = [Record(i, now_ms, k, v, fields.get("headers", ())) for i, (k, v) in
                enumerate(records)]  # fmt: skip
        fields.pop("headers", None)
        return self.append_data(bytearray(encode_batch(made, **fields)), partition)

    def append_data(self, data: bytearray, partition: Partition | None = None) -> int:
        partition = partition or self.partition
        appended = partition.append(data, headers_of(data))
        partition.sync()
        partition.publish()
        return appended.base_offset

    def marker(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        """Append the marker that ends a transaction."""
        data = encode_marker(
            commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        return self.append_data(bytearray(data))

    def cut(self, partition: Partition | None = None) -> None:
        self.store.segments.roll(partition or self.partition, RollReason.DEMAND)

    def register(self, reader: str, offset: int) -> None:
        self.store.metadata.readers.register_reader("t", reader, self.clock.now_ms())
        cursor = Cursor(offset)
        self.store.metadata.readers.commit_cursors({ReaderPartition(reader, *TP): cursor})

    # --- inspecting ---------------------------------------------------------------------------

    def state(self, tp: TopicPartition = TP):
        return self.store.metadata.cluster.cleaner(tp)

    def batches(self, partition: Partition | None = None) -> list[Stored]:
        """Return every batch of the sealed segments, including control and empty batches."""
        partition = partition or self.partition
        found = []
        for segment in partition.segments()[:-1]:
            path = partition.directory / f"{segment.base_offset:020d}.log"
            found += batches_in(path.read_bytes())
        return found

    def close(self) -> None:
        self.metadata.close()
        self.store.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@dataclass
class Stored:
    """A batch as stored in a file."""

    header: BatchHeader
    records: list[Record]
    is_commit: bool | None = None  # for a transaction marker

    @property
    def horizon_ms(self) -> int | None:
        return self.header.base_timestamp_ms if self.header.has_delete_horizon else None


def batches_in(data: bytes) -> list[Stored]:
    found, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        marker = parse_marker(data, position) if header.is_control else None
        records = decode_batch(data, position)
        found.append(Stored(header, records, marker.is_commit if marker else None))
        position += header.size_bytes
    return found


def latest(batches: list[Stored], aborted: set[int] = frozenset()) -> dict[bytes, bytes | None]:
    """Return the newest value of each key; tombstones are ``None``."""
    return {
        record.key: record.value
        for batch in batches
        if not batch.header.is_control
        for record in batch.records
        if record.key is not None and record.offset not in aborted
    }


# --- the oracle -----------------------------------------------------------------------------


@dataclass
class Oracle:
    """Kafka's log cleaner, record by record, over batches in memory."""

    now_ms: int
    retention_ms: int
    passed_end: int = 2**63 - 1
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # id → epoch, last offset
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    ends: frozenset[int] = frozenset()  # last offsets of segments, which must be kept

    def clean(self, batches: list[Stored]) -> list[tuple]:
        """Return the remaining batches as comparable tuples."""
        newest: dict[bytes, int] = {}
        for batch in batches:
            if batch.header.is_control or self._is_aborted(batch):
                continue
            newest |= {r.key: r.offset for r in batch.records if r.key is not None}
        left, with_data = [], set()
        for batch in batches:
            left += self._batch(batch, newest, with_data)
        return left

    def _is_aborted(self, batch: Stored) -> bool:
        header = batch.header
        return header.is_transactional and any(
            header.producer_id == pid and first <= header.base_offset <= last
            for pid, first, last in self.aborted
        )

    def _batch(self, batch: Stored, newest: dict[bytes, int], with_data: set[int]) -> list[tuple]:
        header = batch.header
        wants = False
        if header.is_control:
            kept = list(batch.records)
            if batch.records:
                spent = header.producer_id not in with_data
                with_data.discard(header.producer_id)
                wants = spent
                past = is_past(batch.horizon_ms, header.base_offset, self.now_ms, self.passed_end)
                kept = [] if spent and past else kept
        else:
            if header.is_transactional:
                with_data.add(header.producer_id)
            kept = [r for r in batch.records if self._is_kept(r, batch, newest)]
            wants = any(r.value is None and r.key is not None for r in kept)
        ending = plan_batch(
            kept=len(kept),
            is_needed=self._is_needed(header),
            has_horizon=batch.horizon_ms is not None,
            wants_horizon=wants,
        )
        if ending is BatchAction.DROP:
            return []
        horizon = (
            self.now_ms + self.retention_ms if ending is BatchAction.HORIZON else batch.horizon_ms
        )
        return [summary(header, kept, horizon if kept else None)]

    def _is_kept(self, record: Record, batch: Stored, newest: dict[bytes, int]) -> bool:
        return is_kept(
            is_aborted=self._is_aborted(batch),
            has_key=record.key is not None,
            is_newest=newest.get(record.key) == record.offset,
            is_tombstone=record.value is None,
            is_past=is_past(batch.horizon_ms, record.offset, self.now_ms, self.passed_end),
        )

    def _is_needed(self, header: BatchHeader) -> bool:
        if header.last_offset in self.ends:
            return True
        if header.producer_id not in self.producers:
            return False
        epoch, last = self.producers[header.producer_id]
        if last >= 0:
            return header.last_offset == last
        return header.is_control and header.producer_epoch == epoch


def summary(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> tuple:
    """Return what must match of a batch; base timestamp and codec may differ."""
    return (
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.leader_epoch,
        header.is_transactional,
        header.is_control,
        horizon_ms,
        tuple(records),
    )


def summaries(batches: list[Stored]) -> list[tuple]:
    return [summary(b.header, b.records, b.horizon_ms if b.records else None) for b in batches]


def oracle_for(harness: CompactionHarness) -> Oracle:
    """Create an oracle with the broker's current state."""
    partition = harness.partition
    producers = {
        pid: (producer.epoch, producer.sent[-1].last_offset if producer.sent else -1)
        for pid, producer, _ in partition.producers.active()
    }
    return Oracle(
        now_ms=harness.clock.now_ms(),
        retention_ms=partition.config.delete_retention_ms,
        passed_end=min(
            harness.store.metadata.readers.registered_positions(TP).values(), default=2**63 - 1
        ),
        producers=producers,
        aborted=[entry[:3] for entry in partition.aborted(0, partition.high_watermark)],
    )


# --- random logs ----------------------------------------------------------------------------


class Chance:
    """Appends random records: with and without keys, tombstones, transactions, codecs and rolls."""

    def __init__(
        self, harness: CompactionHarness, seed: int, *, keys: int = 12, keyless: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self._harness = harness
        self._keys = [b"k%d" % i for i in range(keys)]
        self._keyless = keyless
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def run(self, steps: int) -> None:
        """Run that many random appends, markers and rolls, then end every open transaction."""
        for _ in range(steps):
            self._step()
        for producer_id in sorted(self._open):
            self._end(producer_id)

    def _step(self) -> None:
        dice = self.random.random()
        if dice < 0.12:
            self._harness.cut()
        elif dice < 0.25 and self._open:
            self._end(self.random.choice(sorted(self._open)))
        elif dice < 0.55:
            self._append_numbered(self.random.randrange(1, 6))
        else:
            self._harness.append(*self._records(), codec=self.random.choice(list(Codec)))
        self._harness.clock.advance(self.random.randrange(1000))

    def _records(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(self._key(), self._value()) for _ in range(self.random.randrange(1, 7))]

    def _key(self) -> bytes | None:
        if self._keyless and self.random.random() < 0.1:
            return None
        return self.random.choice([*self._keys, b""])

    def _value(self) -> bytes | None:
        return self.random.choice(
            [None, b"", b"v%d" % self.random.randrange(10**6)] * 2 + [b"x" * 90]
        )

    def _append_numbered(self, producer_id: int) -> None:
        records = self._records()
        sequence = self._sequences.get(producer_id, 0)
        is_transactional = producer_id >= 3
        self._harness.append(
            *records,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
            codec=self.random.choice([Codec.NONE, Codec.LZ4]),
            headers=(Header("h", b"1"), Header("n", None)),
        )
        self._sequences[producer_id] = sequence + len(records)
        if is_transactional:
            self._open.add(producer_id)

    def _end(self, producer_id: int) -> None:
        self._harness.marker(producer_id, commit=self.random.random() < 0.5)
        self._open.discard(producer_id)


def expect_cleaned(harness: CompactionHarness, before: list[Stored], oracle: Oracle) -> None:
    """Compare the stored batches with the oracle's result for the batches before the pass.

    Empty batches that a pass adds to reach the end of a segment are ignored. The oracle gets the
    new segment ends, because a batch that ends there is kept.
    """
    oracle.ends = frozenset(s.end_offset - 1 for s in harness.partition.segments()[:-1])
    known = {batch.header.last_offset for batch in before}
    found = [
        fact
        for fact, batch in zip(summaries(harness.batches()), harness.batches(), strict=True)
        if batch.records or batch.header.producer_id >= 0 or batch.header.last_offset in known
    ]
    assert found == oracle.clean(before)


def data_records(batches: list[Stored]) -> list[Record]:
    """Return the records that readers may see, without markers."""
    return [r for batch in batches if not batch.header.is_control for r in batch.records]
