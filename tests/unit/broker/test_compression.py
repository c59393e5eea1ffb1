"""The broker compresses sealed segments in the background, and tells what came of it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress

import pytest

from cordwood.broker.compression import Compressor
from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.config import BrokerConfig, changed
from cordwood.decide.retention import plan_retention
from cordwood.errors import DiskFull, PolicyViolation, RequestError, UnavailableError
from cordwood.log.health.registry import Condition
from cordwood.model import Codec
from cordwood.protocol.api.compaction import BeginCompaction, ReleaseLease
from support.compaction import TP, CompactionHarness, data_records
from support.stores import values_in

MINUTE_MS = 60_000
CONFIG = {"cleanup.policy": "delete", "compression.type": "zstd"}
WAIT_S = 30


class CompressionHarness(CompactionHarness):
    """A data directory with a compressor beside the compaction service."""

    def __init__(self, data, config=None, **options):
        super().__init__(data, {**CONFIG, **(config or {})}, **options)
        self.damaged = []
        self.compressor = Compressor(
            changed(BrokerConfig(), {"compression.bytes.per.second": 2**40}),
            self.store,
            self.clock,
            topics=self.inline,
            swaps=self.inline,
            compaction=self.service,
            on_damage=lambda tp, base: self.damaged.append((tp, base)),
        )

    def fill(self, *counts, value=b"a line of words and words and words "):
        """Append sealed segments of that many batches of one record each."""
        for count in counts:
            for at in range(count):
                self.append((b"k%d" % at, value * 3))
            self.cut()

    def due(self):
        return [target.info.base_offset for target in self.compressor._due()]

    def run_due(self):
        """Do one round of the background task."""
        return asyncio.run(self.compressor._run_due())

    def compress_now(self, *, dry=False):
        async def run():
            found = await self.compressor.compress_now("t", dry=dry)
            if not dry:
                await self.compressor._run_demand(found)
            return found.progress()

        return asyncio.run(run())

    def codecs(self):
        return {batch.header.codec for batch in self.batches()}

    def result(self, base=0):
        entry = self.store.metadata.cluster.segments(TP).get(base)
        return entry.compression

    def close(self):
        self.compressor.stop()
        super().close()


@pytest.fixture
def harness(tmp_path):
    with CompressionHarness(tmp_path / "data") as made:
        yield made


def flip(harness, base):
    path = harness.partition.directory / f"{base:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_segments_are_compressed_oldest_first_once_they_are_old_enough(harness):
    """Sealed segments wait for compression.delay.ms; the active one is never touched."""
    harness.fill(50, 50)
    harness.append((b"k", b"active"))
    assert not harness.run_due()
    harness.clock.advance(MINUTE_MS)
    before = data_records(harness.batches())
    assert harness.due() == [0, 50]
    assert harness.run_due()
    assert harness.codecs() == {Codec.ZSTD}
    assert data_records(harness.batches()) == before
    assert values_in(harness.partition)[100] == "active"
    assert harness.due() == []
    stats = harness.compressor.stats
    sizes = [segment.size_bytes for segment in harness.partition.segments()[:-1]]
    assert (stats.segments["t"], stats.bytes_after["t"]) == (2, sum(sizes))
    assert stats.bytes_before["t"] > 2 * sum(sizes)


def test_a_segment_not_worth_it_is_kept_and_not_tried_again(tmp_path):
    """The index remembers it, also across a restart, until the topic asks for another codec."""
    data = tmp_path / "data"
    with CompressionHarness(data) as harness:
        harness.append((b"k", b"words " * 200), codec=Codec.ZSTD)
        harness.cut()
        harness.clock.advance(MINUTE_MS)
        harness.run_due()
        assert harness.compressor.stats.kept["t"] == 1
        clock = harness.clock
    with CompressionHarness(data, clock=clock) as harness:
        assert harness.result().is_kept
        assert harness.due() == []
        harness.store.alter_topic("t", {"compression.type": "gzip"})
        assert harness.due() == [0]


def test_producer_compression_leaves_everything_alone(tmp_path):
    """By default segments stay as producers sent them; on demand the error says what to set."""
    with CompressionHarness(tmp_path / "data", {"compression.type": "producer"}) as harness:
        harness.fill(20)
        harness.clock.advance(MINUTE_MS)
        assert harness.due() == []
        with pytest.raises(PolicyViolation, match=r"set its compression\.type"):
            harness.compress_now()


def test_a_damaged_segment_is_reported_and_the_others_are_compressed(harness):
    """Damage met on the way goes to the scrub; from then on the segment is skipped."""
    harness.fill(30, 30, 30)
    flip(harness, 30)
    harness.clock.advance(MINUTE_MS)
    harness.run_due()
    assert harness.damaged == [(TP, 30)]
    assert "00000000000000000030.log" in harness.store.health.reasons(
        Condition.COMPRESSION_FAILED
    )[TP]  # fmt: skip
    assert [harness.result(base) is None for base in (0, 30, 60)] == [False, True, False]
    with suppress(Exception):
        harness.partition.read(59, 1)  # what the scrub does
    harness.run_due()
    assert harness.store.health.reasons(Condition.COMPRESSION_FAILED) == {}
    assert [row.status for row in harness.compress_now(dry=True).segments] == [
        "compressed", "damaged", "compressed"
    ]  # fmt: skip


def test_a_failure_is_reported_and_tried_again_later(harness, monkeypatch):
    """A full disk fails the attempt and leaves nothing behind; the retry resolves the report."""
    harness.fill(30)
    harness.clock.advance(MINUTE_MS)

    def full(*_):
        raise DiskFull("write: No space left on device; free space on that filesystem")

    with monkeypatch.context() as patched:
        patched.setattr(harness.files, "write_at", full)
        harness.run_due()
    assert "No space left" in harness.store.health.reasons(Condition.COMPRESSION_FAILED)[TP]
    assert harness.compressor.stats.failures["t"] == 1
    assert list((harness.data / "claimed").iterdir()) == []
    assert harness.due() == []
    harness.clock.advance(MINUTE_MS)
    harness.run_due()
    assert harness.store.health.reasons(Condition.COMPRESSION_FAILED) == {}
    assert harness.codecs() == {Codec.ZSTD}


def test_a_topic_that_cannot_be_planned_delays_no_other(harness, monkeypatch, caplog):
    """If the segments of one topic cannot be looked up, the task goes on with the others."""
    harness.fill(30)
    harness.store.create_topic("a", 1, CONFIG)
    harness.clock.advance(MINUTE_MS)
    plan_topic = harness.compressor._plan_topic

    def failing(topic, *, demand):
        if topic == "a":
            raise UnavailableError("the metadata store does not answer")
        return plan_topic(topic, demand=demand)

    monkeypatch.setattr(harness.compressor, "_plan_topic", failing)
    assert harness.run_due()
    assert harness.codecs() == {Codec.ZSTD}
    assert "compression.postponed topic=a error=the metadata store" in caplog.text


def test_a_report_ends_with_the_segment_it_is_about(harness, monkeypatch):
    """A failed segment that retention dropped is no problem any more."""
    harness.fill(30, 30)
    harness.clock.advance(MINUTE_MS)

    def broken(*_):
        raise UnavailableError("write: Input/output error")

    monkeypatch.setattr(harness.files, "write_at", broken)
    harness.run_due()
    assert harness.store.health.reasons(Condition.COMPRESSION_FAILED)
    harness.partition.drop([0, 30])
    harness.run_due()
    assert harness.store.health.reasons(Condition.COMPRESSION_FAILED) == {}


# --- beside compaction ----------------------------------------------------------------------


def compacted(tmp_path):
    return CompressionHarness(tmp_path / "data", {"cleanup.policy": "compact"})


def test_a_compacted_topic_is_compressed_where_it_is_clean(tmp_path):
    """Dirty segments wait for compaction, which writes the codec itself where it rewrites."""
    with compacted(tmp_path) as harness:
        harness.fill(40)
        harness.clock.advance(MINUTE_MS)
        assert harness.due() == []
        harness.compact_well(demand=False)
        assert harness.state().clean_end == 40
        harness.run_due()
        assert harness.codecs() == {Codec.ZSTD}
        assert data_records(harness.batches())[-1].offset == 39
        harness.fill(40)
        harness.compact_well(demand=False)
        assert [record.offset for record in data_records(harness.batches())] == list(range(40, 80))


def test_nothing_is_swapped_while_a_compaction_job_has_the_partition(tmp_path):
    """A result made meanwhile is discarded; it is made again when the job has ended."""
    with compacted(tmp_path) as harness:
        harness.fill(40)
        harness.compact_well(demand=False)
        harness.fill(5)
        harness.clock.advance(MINUTE_MS)
        planned = harness.compressor._due()
        (order,) = harness.call(BeginCompaction()).orders
        assert harness.due() == []
        asyncio.run(harness.compressor._compress(planned[0], None))
        assert harness.codecs() == {Codec.NONE}
        assert list((harness.data / "claimed").iterdir()) == []
        assert harness.compressor.stats.failures == {}
        harness.call(ReleaseLease("t", 0, order.lease))
        harness.run_due()
        assert Codec.ZSTD in harness.codecs()


def test_no_order_is_given_while_a_segment_is_swapped(tmp_path):
    """One at a time replaces segments of a partition; a compaction waits for the swap to end."""
    with compacted(tmp_path) as harness:
        harness.fill(40)
        harness.clock.advance(LEASE_MS)
        with harness.service.reserve(TP):
            assert harness.call(BeginCompaction()).orders == ()
        assert len(harness.call(BeginCompaction()).orders) == 1


# --- on demand ------------------------------------------------------------------------------


def test_a_dry_run_lists_and_changes_nothing(harness):
    """Each sealed segment is listed with its status; on demand no delay applies."""
    harness.fill(30, 30)
    found = harness.compress_now(dry=True)
    assert [(row.segment, row.status) for row in found.segments] == [(0, "due"), (30, "due")]
    assert not found.running
    assert harness.codecs() == {Codec.NONE}


def test_on_demand_everything_is_compressed_now(harness):
    """A second run has nothing left to do."""
    harness.fill(30, 30)
    for _ in range(2):
        found = harness.compress_now()
        assert [row.status for row in found.segments] == ["compressed", "compressed"]
        assert all(row.bytes < row.bytes_before / 2 for row in found.segments)
        assert found.bytes == found.total_bytes


@asynccontextmanager
async def running(compressor):
    task = asyncio.create_task(compressor.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_background_task_carries_out_a_run_on_demand(harness, monkeypatch):
    """One run at a time; a second one is refused until the first has ended."""
    harness.fill(30)
    began, go_on = threading.Event(), threading.Event()
    compress = harness.store.segments.compress

    def slow(*arguments):
        began.set()
        assert go_on.wait(WAIT_S)
        return compress(*arguments)

    monkeypatch.setattr(harness.store.segments, "compress", slow)
    async with running(harness.compressor):
        run = await harness.compressor.compress_now("t", dry=False)
        await asyncio.to_thread(began.wait, WAIT_S)
        with pytest.raises(RequestError, match="wait until that ends"):
            await harness.compressor.compress_now("t", dry=False)
        go_on.set()
        await asyncio.wait_for(run.ended.wait(), WAIT_S)
    assert harness.codecs() == {Codec.ZSTD}


async def test_a_stop_abandons_the_segment_at_once(harness, monkeypatch):
    """However slow the rate, a stop does not wait; nothing half done is left."""
    harness.fill(200)
    harness.clock.advance(MINUTE_MS)
    monkeypatch.setattr(harness.compressor, "_rate", 1)
    began = threading.Event()
    compress = harness.store.segments.compress

    def told(*arguments):
        began.set()
        return compress(*arguments)

    monkeypatch.setattr(harness.store.segments, "compress", told)
    async with running(harness.compressor):
        await asyncio.to_thread(began.wait, WAIT_S)
        await asyncio.to_thread(harness.compressor.stop)
    assert harness.codecs() == {Codec.NONE}
    assert list((harness.data / "claimed").iterdir()) == []


# --- policies that look at segments ---------------------------------------------------------


def test_retention_by_size_counts_compressed_bytes(harness):
    """What retention.bytes would have dropped stays, because it has become smaller."""
    harness.fill(50, 50, 50)
    limit = sum(each.size_bytes for each in harness.partition.segments()) // 2

    def drops():
        *sealed, active = harness.partition.segments()
        config = changed(harness.partition.config, {"retention.bytes": limit})
        plan = plan_retention(
            sealed, active, {}, log_start=0, config=config, now_ms=harness.clock.now_ms()
        )
        return plan.drops

    assert drops()
    harness.compress_now()
    assert not drops()
