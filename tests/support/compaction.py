"""A yard for compaction tests: a real store behind the real service, without sockets or Spark.

``CompactionHarness`` is the store with the broker's ``CompactionService`` over it;
``yard.compact()`` runs the very job that Spark runs, its tasks one after another in this process.
``random_log`` fills a partition by chance, and ``Oracle`` compacts the same log record by record in
plain Python, by Kafka's rules as ``decide.compaction`` states them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cordwood.batch.header import BatchHeader, parse_header
from cordwood.batch.records import decode_batch, encode_batch, encode_marker, parse_marker
from cordwood.broker.jobs.compaction import CompactionService
from cordwood.clock import ManualClock
from cordwood.config import BrokerConfig
from cordwood.decide.compaction import BatchAction, is_kept, is_past, plan_batch
from cordwood.decide.roll import RollReason
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import Codec, Header, Record, TopicPartition
from cordwood.pipeline.compact.compaction_pass import PassOutcome
from cordwood.pipeline.compact.job import in_process, run_due
from support.crash import QuickFiles
from support.logs import headers_of

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
KEEP_NOTHING_SMALL = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


class _Inline:
    """What the service asks of the topic service and the gate, answered at once."""

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
        self.store.apply_job(verified)


class CompactionHarness:
    """One data directory, open, with a service; also the API the job speaks to."""

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
        self.store = Store.open(data, BrokerConfig(), self.clock, self.files)
        if "t" not in self.store.topics:
            self.store.create_topic("t", partitions, {**KEEP_NOTHING_SMALL, **(config or {})})
        self._thread = ThreadPoolExecutor(1)
        self.inline = _Inline(self.store)
        self.service = CompactionService(
            self.store, self.inline, self.inline, self.clock, self._thread
        )
        self.posts: list[Mapping[str, Any]] = []

    @property
    def partition(self) -> Partition:
        return self.store.partition(TP)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """As the HTTP listener."""
        assert path == "/api/compaction"
        self.posts.append(body)
        tp = TopicPartition(body.get("topic"), body.get("partition"))
        lease = body.get("lease", "")
        match body["action"]:
            case "begin":
                flags = {"demand": body["demand"], "dry": body["dry"]}
                return {"orders": asyncio.run(self.service.begin(body["topic"], **flags))}
            case "renew":
                self.service.renew(tp, lease)
            case "finish":
                told = body["topic_id"], body["jobs"], body["state"]
                asyncio.run(self.service.finish(tp, *told, lease))
            case "fail":
                asyncio.run(self.service.fail(tp, body["error"], lease))
            case "release":
                self.service.release(tp, lease)
        return {}

    def compact(self, *, demand: bool = True, **options: Any) -> list[PassOutcome]:
        """A pass over what is due; on demand everything, thoroughly."""
        topic = "t" if demand else None
        return run_due(self, options.pop("run", in_process), topic=topic, demand=demand, **options)

    def compact_well(self, **options: Any) -> PassOutcome:
        """A pass over one partition that must not fail."""
        (outcome,) = self.compact(**options)
        assert not outcome.error, outcome.error
        return outcome

    # --- filling ------------------------------------------------------------------------------

    def append(self, *records: tuple[bytes | None, bytes | None], **fields: Any) -> int:
        """One batch of (key, value); its base offset."""
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
        """The end of a transaction."""
        data = encode_marker(
            commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        return self.append_data(bytearray(data))

    def cut(self, partition: Partition | None = None) -> None:
        self.store.roll(partition or self.partition, RollReason.DEMAND)

    def register(self, reader: str, offset: int) -> None:
        self.store.catalog.register_reader("t", reader, self.clock.now_ms())
        cursor = Cursor(offset)
        self.store.catalog.commit_cursors({ReaderPartition(reader, *TP): cursor})

    # --- looking ------------------------------------------------------------------------------

    def state(self, tp: TopicPartition = TP):
        return self.store.catalog.cleaner(tp)

    def batches(self, partition: Partition | None = None) -> list[Stored]:
        """Every batch of the sealed segments, control and empty ones too."""
        partition = partition or self.partition
        found = []
        for segment in partition.segments()[:-1]:
            path = partition.directory / f"{segment.base_offset:020d}.log"
            found += batches_in(path.read_bytes())
        return found

    def close(self) -> None:
        self._thread.shutdown()
        self.store.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@dataclass
class Stored:
    """A batch as it stands in a file."""

    header: BatchHeader
    records: list[Record]
    is_commit: bool | None = None  # of a marker

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
    """Key → newest value; tombstones are there as None."""
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
    """Kafka's cleaner, record by record, over batches in memory."""

    now_ms: int
    retention_ms: int
    passed_end: int = 2**63 - 1
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # id → epoch, last offset
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    ends: frozenset[int] = frozenset()  # last offsets that must not be lost

    def clean(self, batches: list[Stored]) -> list[tuple]:
        """What is left, as comparable facts."""
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
        fate = plan_batch(
            kept=len(kept),
            is_needed=self._is_needed(header),
            has_horizon=batch.horizon_ms is not None,
            wants_horizon=wants,
        )
        if fate is BatchAction.DROP:
            return []
        horizon = (
            self.now_ms + self.retention_ms if fate is BatchAction.HORIZON else batch.horizon_ms
        )
        return [facts(header, kept, horizon if kept else None)]

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


def facts(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> tuple:
    """What must agree of a batch; its bytes may differ (base timestamp, codec)."""
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


def facts_of(batches: list[Stored]) -> list[tuple]:
    return [facts(b.header, b.records, b.horizon_ms if b.records else None) for b in batches]


def oracle_for(harness: CompactionHarness) -> Oracle:
    """The oracle with what the broker knows now."""
    partition = harness.partition
    producers = {
        pid: (producer.epoch, producer.sent[-1].last_offset if producer.sent else -1)
        for pid, producer, _ in partition.producers.active()
    }
    return Oracle(
        now_ms=harness.clock.now_ms(),
        retention_ms=partition.config.delete_retention_ms,
        passed_end=min(harness.store.catalog.registered_positions(TP).values(), default=2**63 - 1),
        producers=producers,
        aborted=[entry[:3] for entry in partition.aborted(0, partition.high_watermark)],
    )


# --- chance ---------------------------------------------------------------------------------


class Chance:
    """Appends by chance: keyed and keyless, tombstones, transactions, codecs, cuts."""

    def __init__(
        self, harness: CompactionHarness, seed: int, *, keys: int = 12, keyless: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self._yard = harness
        self._keys = [b"k%d" % i for i in range(keys)]
        self._keyless = keyless
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def run(self, steps: int) -> None:
        """So many appends, markers and cuts; every transaction is decided at the end."""
        for _ in range(steps):
            self._step()
        for producer_id in sorted(self._open):
            self._end(producer_id)

    def _step(self) -> None:
        dice = self.random.random()
        if dice < 0.12:
            self._yard.cut()
        elif dice < 0.25 and self._open:
            self._end(self.random.choice(sorted(self._open)))
        elif dice < 0.55:
            self._append_numbered(self.random.randrange(1, 6))
        else:
            self._yard.append(*self._records(), codec=self.random.choice(list(Codec)))
        self._yard.clock.advance(self.random.randrange(1000))

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
        self._yard.append(
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
        self._yard.marker(producer_id, commit=self.random.random() < 0.5)
        self._open.discard(producer_id)


def expect_cleaned(harness: CompactionHarness, before: list[Stored], oracle: Oracle) -> None:
    """Hold what is stored now against the oracle's view of what was stored before.

    The empty batches a pass makes up to reach the end of a segment are its own; the oracle learns
    where segments end now, as a batch that ends there is kept.
    """
    oracle.ends = frozenset(s.end_offset - 1 for s in harness.partition.segments()[:-1])
    known = {batch.header.last_offset for batch in before}
    found = [
        fact
        for fact, batch in zip(facts_of(harness.batches()), harness.batches(), strict=True)
        if batch.records or batch.header.producer_id >= 0 or batch.header.last_offset in known
    ]
    assert found == oracle.clean(before)


def data_records(batches: list[Stored]) -> list[Record]:
    """What readers may see, markers left out."""
    return [r for batch in batches if not batch.header.is_control for r in batch.records]
