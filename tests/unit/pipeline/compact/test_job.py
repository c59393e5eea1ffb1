"""Compaction passes over a real store, with tasks in this process: one test per Kafka behaviour."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cordwood.batch.header import seal
from cordwood.decide.compaction import Horizon
from cordwood.errors import PolicyViolation
from cordwood.model import Codec, Header
from cordwood.pipeline.compact import PassLimits, batch_cleaner
from cordwood.pipeline.compact.superseded import write_deltas
from support.compaction import HOUR_MS, NOW_MS, TP, CompactionHarness, in_process, latest, summaries
from support.stores import a_batch, records_in, stage

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def harness(tmp_path):
    with CompactionHarness(tmp_path / "data") as made:
        yield made


def fill(harness, *values, cut=True, **fields):
    """Append one batch of ``key:value`` words. A ``key`` without a colon is a tombstone."""
    pairs = [word.partition(":") for word in values]
    harness.append(
        *[(k.encode(), v.encode() if colon else None) for k, colon, v in pairs], **fields
    )
    if cut:
        harness.cut()


def state_of(harness):
    """Return the newest value of each key that is not deleted, as a consumer computes it."""
    found = {r.key: r.value for r in records_in(harness.partition) if r.key is not None}
    return {key: value for key, value in found.items() if value is not None}


def offsets(harness):
    return [record.offset for record in records_in(harness.partition)]


# --- basics ---------------------------------------------------------------------------------


def test_superseded_records_go_and_the_rest_stays_at_its_offsets(harness):
    """Superseded records are removed, the rest keeps its offsets, and the outcome counts both."""
    fill(harness, "a:1", "b:1", "a:2")
    fill(harness, "c:1", "b:2")
    outcome = harness.compact_well()
    assert offsets(harness) == [2, 3, 4]
    assert (outcome.records_before, outcome.records_after) == (5, 3)
    assert outcome.bytes_before == sum(s.size_bytes for s in outcome_segments(harness))


def outcome_segments(harness):
    """Return the segments that the last pass replaced."""
    past = harness.store.metadata.cluster.replaced_segments(TP)
    return [entry for _, entry in past]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_latest_value_of_every_key_is_unchanged_for_every_codec(harness, codec):
    """Compressed batches are rewritten with the same codec, and no key changes its latest value."""
    for turn in range(4):
        fill(harness, *(f"k{i}:{turn}-{'x' * 50}" for i in range(turn, 20)), codec=codec)
    before = state_of(harness)
    harness.compact_well()
    assert state_of(harness) == before
    assert {batch.header.codec for batch in harness.batches() if batch.records} == {codec}


def test_duplicates_appended_after_a_pass_go_with_the_next(harness):
    """The next pass removes records superseded since then, and digests only the new segment."""
    fill(harness, "a:1", "b:1")
    harness.compact_well()
    fill(harness, "a:2", "c:1")
    before = state_of(harness)
    outcome = harness.compact_well()
    assert (outcome.digests_made, outcome.segments_before) == (1, 2)
    assert state_of(harness) == before
    assert offsets(harness) == [1, 2, 3]


def test_an_empty_value_is_a_value_and_only_null_deletes(harness):
    """An empty value is a value. Only a null value is a tombstone."""
    fill(harness, "a:1", "b:1", "a:", "b")
    harness.compact_well()
    assert state_of(harness) == {b"a": b""}


def test_an_empty_key_is_a_key(harness):
    """An empty key is a key and differs from a null key."""
    fill(harness, ":1", ":2", "a:1")
    harness.compact_well()
    assert state_of(harness) == {b"a": b"1", b"": b"2"}


def test_records_without_a_key_stay_and_are_counted(harness):
    """Records without a key are kept and counted, because nothing supersedes them."""
    harness.append((None, b"x"), (b"a", b"1"), (None, None), (b"a", b"2"), (None, b"x"))
    harness.cut()
    outcome = harness.compact_well()
    assert offsets(harness) == [0, 2, 3, 4]
    assert outcome.keyless_kept == harness.state().keyless_records == 3
    harness.append((b"a", b"3"))
    harness.cut()
    harness.compact_well()
    assert offsets(harness) == [0, 2, 4, 5]
    assert harness.state().keyless_records == 3


def test_headers_and_timestamps_survive_a_rewrite(harness):
    """A rewritten record keeps its headers and its timestamp."""
    headers = (Header("h", b"1"), Header("null", None))
    fill(harness, "a:1", "b:1", headers=headers, time_ms=NOW_MS - 77)
    fill(harness, "a:2")
    harness.compact_well()
    kept = records_in(harness.partition)[0]
    assert (kept.headers, kept.timestamp_ms) == (headers, NOW_MS - 77)


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(harness):
    """A batch that loses no record is copied byte for byte, even between batches that do."""
    fill(harness, "a:1", "b:1", cut=False)
    fill(harness, "c:1", "d:1", codec=Codec.GZIP, cut=False)
    fill(harness, "a:2")
    path = harness.partition.directory / f"{0:020d}.log"
    data = path.read_bytes()
    start = data.index(b"\x00" * 7 + b"\x02", 8)  # the second batch begins with offset 2
    middle = data[start : start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")]
    harness.compact_well()
    assert middle in path.read_bytes()


def test_a_thinned_batch_keeps_its_span_sequence_and_epoch(harness):
    """A rewritten batch keeps its offset span, sequence, producer, epochs and attributes."""
    numbered = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 40}
    fill(harness, "a:1", "b:1", "c:1", "d:1", **numbered)
    before = harness.batches()[0].header
    fill(harness, "a:2", "d:2")
    harness.compact_well()
    after = harness.batches()[0].header
    same = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence",
            "leader_epoch", "attributes")  # fmt: skip
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.count == 2


def test_offsets_never_go_backwards_though_the_last_record_goes(harness):
    """The last batch of the range stays, empty if need be, so that offsets never go back."""
    fill(harness, "a:1")
    harness.append((None, b"x"))
    harness.cut()
    harness.compact_well()
    assert harness.batches()[-1].header.last_offset == 1
    assert harness.append((b"b", b"1")) == 2


def test_a_pass_with_nothing_to_remove_replaces_nothing_and_is_remembered(harness):
    """If all keys are unique, the pass advances the clean end and replaces no file."""
    fill(harness, "a:1", "b:1")
    outcome = harness.compact_well(demand=False)
    assert (outcome.segments_staged, harness.state().clean_end) == (0, 2)
    assert harness.compact(demand=False) == []


def test_compacting_twice_at_the_same_moment_changes_nothing(harness):
    """A second pass at the same time changes nothing."""
    fill(harness, "a:1", "b:1", "a:2", "b")
    harness.compact_well()
    first = summaries(harness.batches())
    outcome = harness.compact_well()
    assert summaries(harness.batches()) == first
    assert outcome.records_before == outcome.records_after


def test_a_segment_that_ends_in_a_gap_is_filled_up_to_its_end(harness):
    """A segment that another cleaner left with a gap at its end gets an empty batch there."""
    fill(harness, "a:1", cut=False)
    fill(harness, "b:1")
    fill(harness, "a:2")
    gap = a_batch({0: "a1"})
    stage(harness.store, "foreign", [0, 2], {0: [gap], 2: [a_batch({2: "a2"})]})
    harness.store.segments.apply_job(harness.store.segments.verify_job("foreign"))
    harness.store.alter_topic("t", {"segment.bytes": "20"})  # so that they are not merged
    harness.compact_well()
    spans = [
        (b.header.base_offset, b.header.last_offset, b.header.count) for b in harness.batches()
    ]
    assert spans == [(1, 1, 0), (2, 2, 1)]


# --- range ----------------------------------------------------------------------------------


def test_the_active_segment_is_never_touched(harness):
    """The active segment is not compacted, and its records do not supersede older ones."""
    fill(harness, "K1:A", "K2:B", "K1:C", "K3:D", "K2:E", "K1:F", "K3:G", "K2:H")
    fill(harness, "K1:I", cut=False)
    harness.compact_well(demand=False)
    values = [record.value for record in records_in(harness.partition)]
    assert values == [b"F", b"G", b"H", b"I"]


def test_an_undecided_transaction_blocks_and_its_end_lets_go(harness):
    """Records at or past the last stable offset are not compacted until the transaction ends."""
    fill(harness, "a:1", "a:2")
    numbered = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    fill(harness, "a:3", is_transactional=True, **numbered)
    assert harness.compact_well(demand=False).segments_before == 1
    harness.marker(9, commit=True)
    assert harness.compact_well(demand=False).segments_before == 2
    assert [r.value for r in records_in_data(harness)] == [b"3"]


def records_in_data(harness):
    return [r for b in harness.batches() if not b.header.is_control for r in b.records]


def test_a_topic_policy_without_compact_is_refused_by_name(tmp_path):
    """A topic whose policy lacks ``compact`` is refused with the name of the setting."""
    refused = pytest.raises(PolicyViolation, match=r"cleanup\.policy")
    with CompactionHarness(tmp_path / "data", {"cleanup.policy": "delete"}) as harness, refused:
        harness.compact()


# --- tombstones -----------------------------------------------------------------------------


def test_a_tombstone_stays_for_its_retention_from_the_first_pass(harness):
    """A tombstone is kept for its retention time, which starts at the first pass.

    The age of the record does not matter.
    """
    fill(harness, "a:1", "a", time_ms=NOW_MS - 99 * DAY_MS)
    harness.clock.advance(1000)
    harness.compact_well()
    assert harness.batches()[0].horizon_ms == harness.clock.now_ms() + DAY_MS
    harness.compact_well()
    assert offsets(harness) == [1]
    harness.clock.advance(DAY_MS - 1)
    harness.compact_well()
    assert offsets(harness) == [1]
    harness.clock.advance(1)
    assert harness.compact_well().tombstones_removed == 1
    assert offsets(harness) == []


def test_the_horizon_is_set_once(harness):
    """A later pass does not change the deletion horizon of a batch."""
    fill(harness, "a")
    harness.compact_well()
    first = harness.batches()[0].horizon_ms
    harness.clock.advance(1000)
    fill(harness, "b:1")
    harness.compact_well()
    assert harness.batches()[0].horizon_ms == first


def test_a_record_beside_a_tombstone_keeps_its_timestamp(harness):
    """The horizon replaces the base timestamp in the batch, but record timestamps do not change."""
    fill(harness, "a", "b:1", time_ms=NOW_MS - 5)
    harness.compact_well()
    assert [r.timestamp_ms for r in records_in(harness.partition)] == [NOW_MS - 5] * 2


def test_a_due_tombstone_goes_without_a_new_append(harness):
    """A tombstone past its horizon makes the partition due for a pass, without a new append."""
    fill(harness, "a:1", "a")
    harness.compact_well(demand=False)
    assert harness.state().horizons == (Horizon(harness.clock.now_ms() + DAY_MS, 1),)
    assert harness.compact(demand=False) == []
    harness.clock.advance(DAY_MS)
    assert harness.compact_well(demand=False).rule == "horizon"
    assert offsets(harness) == []
    assert harness.state().horizons == ()


def test_a_tombstone_waits_for_every_registered_reader(harness):
    """A tombstone stays until every registered reader has read past it."""
    fill(harness, "a:1", "a")
    harness.register("slow", 1)
    harness.compact_well()
    harness.clock.advance(2 * DAY_MS)
    assert harness.compact(demand=False) == []
    harness.compact_well()
    assert offsets(harness) == [1]
    harness.register("slow", 2)
    harness.compact_well(demand=False)
    assert offsets(harness) == []


def test_a_tombstone_stays_for_its_reader_in_a_segment_that_is_rewritten_too(harness):
    """A due tombstone that a reader has not read yet stays when its batch is rewritten."""
    fill(harness, "b:1", "a")
    harness.register("slow", 1)
    harness.compact_well()
    harness.clock.advance(2 * DAY_MS)
    fill(harness, "b:2")
    harness.compact_well()
    assert offsets(harness) == [1, 2]


def test_an_old_value_never_comes_back_when_its_tombstone_goes(harness):
    """No old value reappears when tombstones in later segments are removed."""
    for index in range(6):
        fill(harness, f"k{index}:" + "x" * 40)
    for index in range(6):
        fill(harness, f"k{index}")
    harness.compact_well()
    harness.clock.advance(DAY_MS)
    harness.compact_well()
    assert state_of(harness) == {}


# --- transactions ---------------------------------------------------------------------------

TXN = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}


def test_an_aborted_record_never_wins(harness):
    """A record of an aborted transaction does not supersede the committed value before it."""
    fill(harness, "a:good")
    fill(harness, "a:bad", base_sequence=0, **TXN)
    harness.marker(5, commit=False)
    harness.cut()
    harness.compact_well()
    assert latest(harness.batches()) == {b"a": b"good"}


def test_the_marker_of_an_aborted_transaction_may_lie_in_the_active_segment(harness):
    """An abort marker may still be in the active segment; the job learns of it from the broker."""
    fill(harness, "a:good")
    fill(harness, "a:bad", base_sequence=0, **TXN)
    harness.marker(5, commit=False)
    harness.compact_well(demand=False)
    assert latest(harness.batches()) == {b"a": b"good"}


def test_a_commit_marker_stays_while_a_record_lives_and_goes_by_its_own_horizon(harness):
    """A commit marker is kept while a record of its transaction is left.

    After that it gets a horizon of its own and is removed when it has passed.
    """
    fill(harness, "a:1", base_sequence=0, **TXN)
    harness.marker(5, commit=True)
    fill(harness, "b:1", base_sequence=1, **TXN)  # holds the producer's last sequence
    harness.marker(5, commit=True)
    harness.cut()
    harness.compact_well()
    fill(harness, "a:2")
    markers = []
    for wait_ms in (0, 0, DAY_MS, 0):
        harness.clock.advance(wait_ms)
        harness.compact_well()
        found = [b for b in harness.batches() if b.header.is_control and b.records]
        markers.append([b.horizon_ms is not None for b in found])
    assert markers == [[False, False], [True, False], [False], [False]]


def test_the_index_of_aborted_transactions_keeps_those_with_batches_left(harness):
    """An aborted transaction stays in the index until its last batch is removed.

    Its marker is removed later.
    """
    fill(harness, "a:bad", base_sequence=0, **TXN)
    harness.marker(5, commit=False)
    fill(harness, "b:1", base_sequence=1, **TXN)
    harness.marker(5, commit=True)
    harness.cut()
    end = harness.partition.high_watermark
    assert len(harness.partition.aborted(0, end)) == 1
    harness.compact_well()
    assert len(harness.partition.aborted(0, end)) == 1
    harness.compact_well()
    assert harness.partition.aborted(0, end) == []
    assert any(batch.is_commit is False for batch in harness.batches())


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_several_segments(harness, commit):
    """The records of a transaction over several segments are kept or removed together."""
    fill(harness, "a:0", "b:0", "c:0")
    fill(harness, "a:1", base_sequence=0, **TXN)
    fill(harness, "b:1", base_sequence=1, **TXN)
    harness.marker(5, commit=commit)
    harness.cut()
    harness.compact_well()
    value = b"1" if commit else b"0"
    assert latest(harness.batches()) == {b"a": value, b"b": value, b"c": b"0"}


def test_a_key_that_looks_like_a_marker_does_not_meet_one(harness):
    """Markers are recognised by their batch attributes, so a record may have a marker's key."""
    harness.append((b"\x00\x00\x00\x01", b"mine"))
    fill(harness, "a:1", base_sequence=0, **TXN)
    harness.marker(5, commit=True)
    harness.cut()
    harness.compact_well()
    assert b"\x00\x00\x00\x01" in latest(harness.batches())
    assert any(batch.is_commit for batch in harness.batches())


def test_an_emptied_control_batch_survives_and_can_be_cleaned_again(harness):
    """A producer with no batches but markers keeps an empty control batch with its epoch."""
    harness.marker(5, commit=True, epoch=4)
    fill(harness, "a:1")
    harness.compact_well()
    harness.clock.advance(DAY_MS)
    for _ in range(2):
        harness.compact_well()
        (control,) = [b for b in harness.batches() if b.header.is_control]
        assert (control.records, control.header.producer_epoch) == ([], 4)


# --- producers ------------------------------------------------------------------------------


def test_the_last_sequence_of_a_producer_survives_as_an_empty_batch(harness, tmp_path):
    """An empty batch keeps a producer's last sequence.

    After a restart that replays the log, a resent batch is still recognised as a duplicate.
    """
    numbered = {"producer_id": 7, "producer_epoch": 0}
    fill(harness, "a:1", base_sequence=0, **numbered)
    fill(harness, "a:2")
    harness.compact_well()
    empty = harness.batches()[0]
    assert (empty.records, empty.header.producer_id, empty.header.last_sequence) == ([], 7, 0)
    harness.close()
    for snapshot in (tmp_path / "data" / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    with CompactionHarness(tmp_path / "data") as again:
        assert again.append((b"a", b"1"), base_sequence=0, **numbered) == 0
        assert again.append((b"a", b"3"), base_sequence=1, **numbered) == 2


def test_the_same_when_the_last_batch_was_aborted(harness):
    """An aborted batch loses its records, but keeps the producer's last sequence."""
    fill(harness, "a:1", base_sequence=0, **TXN)
    harness.marker(5, commit=False)
    harness.cut()
    harness.compact_well()
    first = harness.batches()[0]
    assert (first.records, first.header.base_sequence) == ([], 0)


def test_the_empty_batch_goes_once_its_producer_writes_again(harness):
    """The empty batch is removed after its producer has appended a newer batch."""
    numbered = {"producer_id": 7, "producer_epoch": 0}
    fill(harness, "a:1", base_sequence=0, **numbered)
    fill(harness, "a:2")
    harness.compact_well()
    fill(harness, "b:1", base_sequence=1, **numbered)
    harness.compact_well()
    assert [b.header.base_offset for b in harness.batches() if b.header.producer_id == 7] == [2]


# --- segments -------------------------------------------------------------------------------


def test_neighbours_become_one_segment_and_its_indexes_are_built(harness, tmp_path):
    """Adjacent small segments are merged, and the merged one is indexed by offset and by time."""
    for turn in range(5):
        fill(harness, *(f"k{i}:{turn}" for i in range(turn, 30)), time_ms=NOW_MS + turn)
    harness.compact_well()
    assert len(harness.partition.segments()) == 2
    harness.close()
    with CompactionHarness(tmp_path / "data") as again:
        assert again.partition.find_time(NOW_MS + 2).timestamp_ms == NOW_MS + 2
        assert len(records_in(again.partition)) == 30


def test_segment_bytes_bounds_what_is_merged(tmp_path):
    """Merged segments stay within ``segment.bytes``, measured after compaction."""
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "300"}) as harness:
        for turn in range(4):
            fill(harness, f"k{turn}:" + "x" * 60)
        harness.compact_well()
        sizes = [segment.size_bytes for segment in harness.partition.segments()[:-1]]
        assert len(sizes) == 2
        assert all(size <= 300 for size in sizes)


def test_segments_that_lose_most_of_their_records_become_one(tmp_path):
    """Full segments are merged if what remains of them fits in one segment."""
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "1000"}) as harness:
        for turn in range(20):
            fill(harness, f"k{turn}:1", *(f"same{i}:" + "x" * 90 for i in range(8)))
        harness.compact_well()
        sealed = harness.partition.segments()[:-1]
        assert [segment.size_bytes <= 2000 for segment in sealed] == [True] * len(sealed)
        assert len(sealed) <= 5, "not the twenty there were"
        assert len(state_of(harness)) == 28


def test_a_group_that_becomes_larger_than_expected_is_divided(tmp_path):
    """A merge whose result is larger than estimated is split, so no segment exceeds its limit.

    Small records are removed and large ones stay, so the estimate by record count is too low.
    """
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "2500"}) as harness:
        for turn in range(8):
            fill(harness, *(f"small{i}:1" for i in range(50)), f"large{turn}:" + "x" * 1000)
        before = state_of(harness)
        outcome = harness.compact_well()
        sizes = [segment.size_bytes for segment in harness.partition.segments()[:-1]]
        assert max(sizes) <= 2500
        assert outcome.segments_staged == len(sizes) < 8
        assert state_of(harness) == before
        assert not list((tmp_path / "data" / "staging").glob("*/*.log")), "halves left nothing"


def test_a_batch_larger_than_a_chunk_is_cleaned(harness):
    """A batch larger than the chunk size is compacted."""
    fill(harness, "a:" + "x" * 5000, "b:1")
    fill(harness, "a:2")
    harness.compact_well(limits=PassLimits(chunk_bytes=100))
    assert state_of(harness) == {b"a": b"2", b"b": b"1"}


@pytest.mark.parametrize(
    ("asked", "codec"), [("zstd", Codec.ZSTD), ("lz4", Codec.LZ4), ("uncompressed", Codec.NONE)]
)
def test_compression_type_recompresses_what_is_rewritten(tmp_path, asked, codec):
    """Rewritten batches use the codec of ``compression.type``."""
    with CompactionHarness(tmp_path / "data", {"compression.type": asked}) as harness:
        fill(harness, "a:" + "x" * 500, "b:" + "y" * 500, codec=Codec.SNAPPY)
        fill(harness, "a:2")
        before = state_of(harness)
        harness.compact_well()
        assert {b.header.codec for b in harness.batches() if b.records} == {codec}
        assert state_of(harness) == before


def test_only_segments_with_something_to_change_are_rewritten(tmp_path):
    """Only segments that lose records are rewritten. Clean segments are not."""
    with CompactionHarness(tmp_path / "data", {"segment.bytes": "1000"}) as harness:
        for turn in range(4):
            fill(harness, *(f"k{turn}-{i}:" + "x" * 90 for i in range(7)))
        harness.compact_well()
        fill(harness, "k1-0:new", "k9:1")
        outcome = harness.compact_well(demand=False)
        assert (outcome.segments_before, outcome.digests_made) == (5, 1)
        assert outcome.segments_rewritten == 1
        assert state_of(harness)[b"k1-0"] == b"new"
        assert len(state_of(harness)) == 29


# --- damage and failures --------------------------------------------------------------------


def damage(harness, base=0):
    path = harness.partition.directory / f"{base:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_a_corrupt_segment_quarantines_its_partition_and_no_other(tmp_path):
    """A corrupt segment quarantines its partition. Other partitions are compacted."""
    with CompactionHarness(tmp_path / "data", partitions=2) as harness:
        for number in range(2):
            partition = harness.store.topic("t").partition(number)
            harness.append((b"a", b"1"), (b"a", b"2"), partition=partition)
            harness.cut(partition)
        damage(harness)
        bad, good = sorted(harness.compact(), key=lambda outcome: outcome.tp)
        assert "restore this segment" in bad.error
        assert (good.error, good.records_after) == ("", 1)
        assert list(harness.service.quarantined()) == [TP]
        assert harness.compact(demand=False) == []
        harness.clock.advance(HOUR_MS)
        assert [outcome.tp for outcome in harness.compact(demand=False)] == [TP]
        assert harness.state().failures == 2


def test_a_damaged_digest_is_made_again(harness):
    """A damaged digest file is rebuilt."""
    fill(harness, "a:1", "b:1")
    harness.compact_well()
    fill(harness, "a:2")
    (digest,) = (harness.data / "cleaner" / "t-0").glob("*.keys")
    data = bytearray(digest.read_bytes())
    data[5] ^= 1
    digest.write_bytes(data)
    outcome = harness.compact_well()
    assert outcome.digests_made == 2
    assert state_of(harness) == {b"a": b"2", b"b": b"1"}


def test_lost_digests_are_made_again(harness):
    """Digests are rebuilt if their directory was removed."""
    fill(harness, "a:1", "b:1")
    harness.compact_well()
    shutil.rmtree(harness.data / "cleaner")
    fill(harness, "a:2")
    assert harness.compact_well().digests_made == 2
    assert state_of(harness) == {b"a": b"2", b"b": b"1"}


def test_digests_of_a_deleted_topic_are_not_believed_of_its_namesake(harness):
    """A new topic with the name of a deleted one does not use the old topic's digests."""
    fill(harness, "a:1", "a:2")
    harness.compact_well()
    harness.store.delete_topic("t")
    harness.store.create_topic("t", 1, {"cleanup.policy": "compact"})
    fill(harness, "b:1", "b:2")
    assert harness.compact_well().digests_made == 1
    assert state_of(harness) == {b"b": b"2"}


def test_a_segment_reclaimed_meanwhile_makes_the_pass_stale_not_wrong(harness):
    """If a segment is reclaimed during the pass, the pass fails without a quarantine."""
    fill(harness, "a:1", "a:2")
    fill(harness, "b:1", "b:2")
    path = harness.partition.directory / f"{0:020d}.log"

    def run(function, items):
        if function.__name__ == "rewrite":
            path.rename(path.with_suffix(".log.deleted"))
        return in_process(function, items)

    (outcome,) = harness.compact(run=run)
    assert "run the job again" in outcome.error
    assert harness.state().failures == 0
    assert not harness.service.look("t")[0].inputs.is_running


def test_a_result_that_would_lose_a_key_is_not_swapped_in(harness):
    """A pass that would lose the newest record of a key is refused before the swap."""
    fill(harness, "a:1", "b:1")
    fill(harness, "a:2")

    def run(function, items):
        answers = in_process(function, items)
        if function.__name__ == "_find":  # claim that every record is superseded
            write_deltas(Path(items[0].out), np.array([0, 1, 0], np.uint32), np.array([0, 2, 3]))
        return answers

    (outcome,) = harness.compact(run=run)
    assert "would change the newest record" in outcome.error
    assert state_of(harness) == {b"a": b"2", b"b": b"1"}
    assert not list((harness.data / "staging").glob("*"))


def test_a_rewrite_that_does_not_read_back_is_not_swapped_in(harness, monkeypatch):
    """A rewrite whose values differ from the original ones is refused before the swap."""
    fill(harness, "a:1", "b:right")
    fill(harness, "a:2")
    encode = batch_cleaner.encode_columns

    def flip(columns, batches, *options):
        data = encode(columns, batches, *options)
        data[data.index(b"right")] ^= 1
        seal(data, 0, len(data))
        return data

    monkeypatch.setattr(batch_cleaner, "encode_columns", flip)
    (outcome,) = harness.compact()
    assert "differ from the original ones" in outcome.error
    assert state_of(harness) == {b"a": b"2", b"b": b"right"}


def test_the_manifest_records_the_proof(harness):
    """The manifest records the number of keys, the highest offset and the clean end."""
    fill(harness, "a:1", "a:2", "b:1")
    seen = []
    harness.inline.before_swap = lambda job: seen.append(
        json.loads((harness.data / "staging" / job / "manifest.json").read_text())["verified"]
    )
    harness.compact_well()
    (verified,) = seen
    assert (verified["keys"], verified["high_offset"]) == (2, 2)
    assert verified["cleaner"]["clean_end"] == 3


def test_a_dry_run_says_what_it_frees_and_changes_nothing(harness):
    """A dry run reports what a real pass would free, and changes nothing."""
    fill(harness, "a:1", "a:2")
    before = harness.partition.segments()
    dry = harness.compact_well(dry=True)
    assert (harness.partition.segments(), harness.state().passes) == (before, 0)
    assert not list((harness.data / "staging").glob("*"))
    wet = harness.compact_well()
    assert (dry.freed_bytes, dry.records_after) == (wet.freed_bytes, wet.records_after)
    assert wet.freed_bytes == harness.state().freed_bytes > 0


@pytest.mark.slow
def test_small_budgets_give_the_same_result(tmp_path):
    """A small memory budget gives more ranges and the same result."""
    found = []
    for number, task_bytes in enumerate((1 << 27, 1 << 10, 1)):
        with CompactionHarness(tmp_path / str(number)) as harness:
            for turn in range(3):
                fill(harness, *(f"k{i}:{turn}" for i in range(turn, 40)))
            harness.compact_well(limits=PassLimits(task_bytes=task_bytes))
            found.append(summaries(harness.batches()))
    assert found[0] == found[1] == found[2]
