"""A compressed segment takes the place of the original only if it holds the same records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.recoding import Recoding
from cordwood.batch.records import encode_batch, encode_marker
from cordwood.errors import CorruptionError, InvalidManifest, StaleManifest
from cordwood.log.lifecycle.compression_proof import prove_compressed
from cordwood.model import Codec, Header, Record, SegmentInfo, SegmentState
from cordwood.pipeline.source.segment_files import read_chunks
from support.compaction import NOW_MS, Chance, CompactionHarness, data_records

ZSTD = Recoding(Codec.ZSTD, {})
LINE = b"2026-11-18 host=%d svc=orders user=%d a line of about a hundred bytes with words and words"


def no_pace(_size_bytes):
    """Do not wait."""


@pytest.fixture
def harness(tmp_path):
    """A topic of any policy, with room for whole segments."""
    with CompactionHarness(tmp_path / "data", {"cleanup.policy": "delete"}) as made:
        yield made


def lines(harness, count, **fields):
    """Append lines as batches of one record each."""
    for at in range(count):
        harness.append((b"k%d" % at, LINE % (at % 7, at)), **fields)


def compress(harness, recoding=ZSTD, base=0):
    """Compress one segment and swap it in; returns whether it was worth it."""
    (info,) = [each for each in harness.partition.segments() if each.base_offset == base]
    verified = harness.store.segments.compress(harness.partition, info, recoding, no_pace)
    if verified is not None:
        harness.store.segments.apply_job(verified)
    return verified is not None


def entry(harness, base=0):
    return harness.store.metadata.cluster.segments(harness.partition.tp).get(base)


def test_lines_that_arrived_one_by_one_compress_together(harness):
    """Single lines do not compress; merged they shrink to less than half. The stats stay."""
    lines(harness, 500)
    harness.cut()
    before, records = harness.partition.segments()[0], data_records(harness.batches())
    assert compress(harness)
    after = harness.partition.segments()[0]
    assert after.size_bytes < before.size_bytes / 2
    assert replace(after, size_bytes=before.size_bytes) == before
    assert data_records(harness.batches()) == records
    assert len(harness.batches()) < 10
    result = entry(harness).compression
    assert (result.codec, result.bytes_before, result.is_kept) == ("zstd", before.size_bytes, False)
    assert entry(harness).size_bytes == after.size_bytes


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("codec", list(Codec))
def test_any_log_reads_the_same_after_compression(tmp_path, seed, codec):
    """Producers, transactions, markers, aborted ones and headers: all as before, also reopened."""
    with CompactionHarness(tmp_path / "data", {"cleanup.policy": "delete"}) as harness:
        Chance(harness, seed, keyless=True).run(100)
        harness.cut()
        partition = harness.partition
        sealed = partition.segments()[:-1]
        before = [facts(harness), partition.aborted(0, 10_000), partition.producers.active()]
        for info in sealed:
            compress(harness, Recoding(codec, {}), info.base_offset)
        after = [facts(harness), partition.aborted(0, 10_000), partition.producers.active()]
        assert after == before
    with CompactionHarness(tmp_path / "data") as harness:
        assert [facts(harness), harness.partition.aborted(0, 10_000)] == before[:2]


def facts(harness):
    """Everything about the records and the batches that carry meaning beyond their records."""
    batches = harness.batches()
    headers = [
        (h.base_offset, h.last_offset, h.producer_id, h.producer_epoch, h.base_sequence,
         h.leader_epoch, h.is_control, h.is_transactional, h.max_timestamp_ms)
        for h in (batch.header for batch in batches)
        if h.producer_id >= 0
    ]  # fmt: skip
    stats = [replace(each, size_bytes=0) for each in harness.partition.segments()[:-1]]
    return headers, data_records(batches), stats


def test_a_segment_that_saves_too_little_stays_and_is_remembered(harness):
    """Nothing is swapped, and the index says that it was tried."""
    harness.append((b"k", bytes(range(256)) * 2), codec=Codec.ZSTD)
    harness.cut()
    before = entry(harness)
    assert not compress(harness)
    assert entry(harness).compression.is_kept
    assert replace(entry(harness), compression=None) == before
    assert list((harness.data / "claimed").iterdir()) == []


def test_a_batch_that_would_grow_keeps_its_codec(harness):
    """In a segment worth compressing, single batches that do not shrink are copied."""
    noise = {"producer_id": 3, "producer_epoch": 0}
    harness.append((b"k", b"words " * 300), base_sequence=0, **noise)
    harness.append((b"k", NOISE), base_sequence=1, **noise)
    harness.cut()
    assert compress(harness)
    assert [batch.header.codec for batch in harness.batches()] == [Codec.ZSTD, Codec.NONE]


NOISE = bytes(i * i * 2654435761 >> 11 & 255 for i in range(300))


def test_a_second_codec_starts_from_the_first(harness):
    """The size before is the sealed one; ``uncompressed`` gives plain batches again."""
    lines(harness, 100)
    harness.cut()
    size_bytes = harness.partition.segments()[0].size_bytes
    records = data_records(harness.batches())
    for codec in (Codec.GZIP, Codec.NONE):
        assert compress(harness, Recoding(codec, {}))
        assert {batch.header.codec for batch in harness.batches()} <= {codec, Codec.NONE}
        assert entry(harness).compression.bytes_before == size_bytes
        assert data_records(harness.batches()) == records


def test_records_of_several_leader_epochs_stay_apart(harness):
    """A batch has one leader epoch; those of two are not merged."""
    for epoch in (0, 1):
        for at in range(20):
            data = bytearray(encode_batch([Record(0, NOW_MS, b"k", LINE % (epoch, at))]))
            harness.partition.leader_epoch = epoch
            harness.append_data(data)
    harness.cut()
    epochs = {b.header.leader_epoch for b in harness.batches()}
    assert compress(harness)
    after = [batch.header for batch in harness.batches()]
    assert {header.leader_epoch for header in after} == epochs == {0, 1}
    assert len(after) < 40


def test_a_damaged_segment_is_not_rewritten(harness):
    """Every checksum of the original is checked; the error names the file."""
    lines(harness, 20)
    harness.cut()
    path = harness.partition.directory / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=path.name):
        compress(harness)
    assert path.read_bytes() == data
    assert list((harness.data / "claimed").iterdir()) == []


def test_a_segment_that_changed_meanwhile_is_not_replaced(harness):
    """The swap refuses a result that was made from another file."""
    lines(harness, 100)
    harness.cut()
    info = harness.partition.segments()[0]
    late = harness.store.segments.compress(harness.partition, info, ZSTD, no_pace)
    assert compress(harness, Recoding(Codec.GZIP, {}))
    with pytest.raises(StaleManifest):
        harness.store.segments.apply_job(late)
    assert entry(harness).compression.codec == "gzip"


def test_a_scan_in_the_middle_of_a_segment_goes_on_across_the_swap(harness):
    """A Spark task that has read a part of the file finds every record once, in order."""
    lines(harness, 300)
    harness.cut()
    lines(harness, 5)
    scan = read_chunks(
        harness.partition.directory, 0, 305, fail_on_data_loss=True, chunk_bytes=2000
    )
    first = next(scan)
    assert compress(harness)
    later = list(read_chunks(
        harness.partition.directory, first.end_offset, 305, fail_on_data_loss=True
    ))  # fmt: skip
    for chunks in ([first, *scan], [first, *later]):
        offsets = [
            decode_columns(chunk.data, start_offset=chunk.start_offset).offsets for chunk in chunks
        ]
        assert np.concatenate(offsets).tolist() == list(range(305))


def test_a_reader_between_two_records_of_a_merged_batch_goes_on(harness):
    """A read from any offset returns the batch that holds it; times are found as before."""
    for at in range(200):
        harness.append((b"k", LINE % (0, at)), time_ms=NOW_MS + at)
    harness.cut()
    partition = harness.partition
    found = {at: partition.find_time(NOW_MS + at) for at in (0, 1, 57, 199)}
    assert compress(harness)
    for offset in (0, 1, 57, 198):
        part = partition.read(offset, 1)
        assert part.first_offset <= offset < part.next_offset
    assert {at: partition.find_time(NOW_MS + at) for at in found} == found


# --- the proof ------------------------------------------------------------------------------


def record(offset, value=b"v", **changes):
    return replace(Record(offset, NOW_MS + offset, b"k", value, (Header("h", b"1"),)), **changes)


def batch(*records, **fields):
    return encode_batch(records, base_offset=records[0].offset, **fields)


def marker(offset, *, commit=True):
    data = bytearray(encode_marker(
        commit, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
    ))  # fmt: skip
    data[0:8] = offset.to_bytes(8, "big")
    return bytes(data)


def numbered(*records, **fields):
    return batch(*records, producer_id=5, producer_epoch=0, base_sequence=0, **fields)


PLAIN = [batch(record(0)), batch(record(1)), batch(record(2))]
OWNED = [numbered(record(3), record(4)), marker(5)]
MERGED = batch(record(0), record(1), record(2), codec=Codec.ZSTD)


def prove(tmp_path, *new, old=(*PLAIN, *OWNED), codec=Codec.ZSTD):
    data, made = b"".join(old), b"".join(new)
    (tmp_path / f"{0:020}.log").write_bytes(data)
    (tmp_path / "new.log").write_bytes(made)
    info = SegmentInfo(
        base_offset=0, end_offset=6, size_bytes=len(data), records=6, first_ms=0, newest_ms=0,
        created_ms=0, state=SegmentState.SEALED,
    )  # fmt: skip
    prove_compressed(tmp_path, info, tmp_path / "new.log", codec, no_pace)


def test_merged_batches_and_another_codec_are_proved(tmp_path):
    """What compression does passes its own proof, and so does no change at all."""
    prove(tmp_path, MERGED, numbered(record(3), record(4), codec=Codec.ZSTD), marker(5))
    prove(tmp_path, *PLAIN, *OWNED)


WRONG = {
    "a record is missing": [batch(record(0), record(2), codec=Codec.ZSTD), *OWNED],
    "a batch is missing": [*PLAIN[:2], *OWNED],
    "the end is missing": [MERGED, OWNED[0]],
    "a record is added": [*PLAIN, *OWNED, batch(record(6))],
    "a value differs": [batch(record(0), record(1, b"w"), record(2)), *OWNED],
    "a key differs": [batch(record(0), record(1, key=b"l"), record(2)), *OWNED],
    "a header differs": [batch(record(0), record(1, headers=()), record(2)), *OWNED],
    "a timestamp differs": [
        batch(record(0), record(1, timestamp_ms=NOW_MS), record(2)), *OWNED
    ],
    "the newest timestamp differs": [
        batch(record(0), record(1), record(2, timestamp_ms=NOW_MS)), *OWNED
    ],
    "another codec": [batch(record(0), record(1), record(2), codec=Codec.GZIP), *OWNED],
    "another leader epoch": [batch(record(0), record(1), record(2), leader_epoch=4), *OWNED],
    "a producer appears": [batch(record(0), record(1), record(2), producer_id=9), *OWNED],
    "a producer vanishes": [MERGED, batch(record(3), record(4)), marker(5)],
    "a sequence differs": [
        MERGED,
        batch(record(3), record(4), producer_id=5, producer_epoch=0, base_sequence=1),
        marker(5),
    ],
    "a transaction appears": [
        MERGED, numbered(record(3), record(4), is_transactional=True), marker(5)
    ],
    "a horizon appears": [
        MERGED, numbered(record(3), record(4), delete_horizon_ms=NOW_MS), marker(5)
    ],
    "a marker differs": [MERGED, OWNED[0], marker(5, commit=False)],
    "a producer's batch is cut": [
        MERGED, numbered(record(3)), batch(record(4), producer_id=5, producer_epoch=0), marker(5)
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_result_that_differs_in_anything_is_refused(tmp_path, what):
    """Each rule of the proof is broken once."""
    with pytest.raises(InvalidManifest):
        prove(tmp_path, *WRONG[what])


def test_batches_of_a_producer_are_never_merged(tmp_path):
    """A resent batch is recognised by its first and last sequence."""
    one = batch(record(0), producer_id=5, producer_epoch=0, base_sequence=0)
    two = batch(record(1), producer_id=5, producer_epoch=0, base_sequence=1)
    both = batch(record(0), record(1), producer_id=5, producer_epoch=0, base_sequence=0)
    with pytest.raises(InvalidManifest):
        prove(tmp_path, both, old=[one, two])
