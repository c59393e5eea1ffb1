"""Damage in a segment: sound batches are served, damaged offset ranges are refused and reported."""

from __future__ import annotations

import random
import shutil

import pytest

from cordwood.batch.header import HEADER_BYTES, parse_header
from cordwood.decide.roll import RollReason
from cordwood.errors import CorruptionError, DamagedRecords
from cordwood.log.health.registry import Condition
from support.stores import TP, append, open_store

BATCHES, RECORDS = 12, 3  # batches per segment, records per batch
SPAN = BATCHES * RECORDS


@pytest.fixture(scope="module", params=[0, 4096], ids=["indexed", "unindexed"])
def written(tmp_path_factory, request):
    """Three sealed segments and an active one, with one index entry per batch or none."""
    data = tmp_path_factory.mktemp("written") / "data"
    opened = open_store(data)
    opened.create_topic("t", 1, {"index.interval.bytes": request.param})
    partition = opened.partition(TP)
    for segment in range(4):
        for batch in range(BATCHES):
            append(partition, *(f"{segment}.{batch}.{n}" * 20 for n in range(RECORDS)))
        if segment < 3:
            opened.segments.roll(partition, RollReason.DEMAND)
    opened.close()
    return data


@pytest.fixture
def store(tmp_path, written):
    """A separate copy for each test to damage."""
    shutil.copytree(written, tmp_path / "data")
    opened = open_store(tmp_path / "data")
    yield opened
    opened.close()


def log_of(store, segment=1):
    return store.data / str(TP) / f"{segment * SPAN:020}.log"


def positions(data):
    found = [0]
    while found[-1] < len(data):
        found.append(found[-1] + parse_header(data, found[-1]).size_bytes)
    return found


def change(store, batch, at, bits=0x40, segment=1):
    """Flip bits of one byte of a batch."""
    path = log_of(store, segment)
    data = bytearray(path.read_bytes())
    data[positions(data)[batch] + at] ^= bits
    path.write_bytes(data)


def read_all(partition, max_bytes=1 << 20):
    """All served offsets and all refused ranges, as seen by a consumer that skips each range."""
    served, refused = [], []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        try:
            part = partition.read(offset, max_bytes)
        except DamagedRecords as error:
            refused.append((error.damage.start_offset, error.damage.end_offset))
            offset = error.damage.end_offset
            continue
        at = 0
        while at < len(part.data):
            header = parse_header(part.data, at)
            served += range(header.base_offset, header.end_offset)
            at += header.size_bytes
        offset = part.next_offset
    return served, refused


BODY = HEADER_BYTES + 5
FIELDS = {
    "body": (BODY, 0x40), "crc": (17, 0x40), "magic": (16, 0x01), "longer": (11, 0x02),
    "much longer": (8, 0x40), "negative length": (8, 0x80), "shorter": (10, 0x01),
    "last offset": (26, 0x01), "far last offset": (23, 0x40), "records": (60, 0x01),
}  # fmt: skip


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("batch", [0, 5, BATCHES - 1])
@pytest.mark.parametrize("field", FIELDS)
def test_one_flipped_bit_costs_one_batch(store, field, batch, max_bytes):
    """A flipped bit makes one batch unreadable; its range is refused and reported."""
    at, bits = FIELDS[field]
    change(store, batch, at, bits)
    first = SPAN + batch * RECORDS
    served, refused = read_all(store.partition(TP), max_bytes)
    assert refused == [(first, first + RECORDS)]
    assert served == [n for n in range(4 * SPAN) if not first <= n < first + RECORDS]
    (report,) = store.health.damage(TP)
    assert (report.segment, report.start_offset, report.end_offset) == (
        SPAN,
        first,
        first + RECORDS,
    )
    assert str(log_of(store)) in report.problem
    assert store.health.damage_found == 1


@pytest.mark.parametrize("batch", [1, 5, BATCHES - 2])
def test_a_false_base_offset_is_laid_to_the_batch_that_has_it(store, batch):
    """A wrong base offset is attributed to its own batch and not to the next one.

    The base offset is not covered by the checksum, so only the next batch reveals the error.
    """
    change(store, batch, 7, 0x40)
    first = SPAN + batch * RECORDS
    served, refused = read_all(store.partition(TP))
    assert refused == [(first, first + RECORDS)]
    assert served == [n for n in range(4 * SPAN) if not first <= n < first + RECORDS]


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x02", None], ids=["0", "ff", "02", "noise"])
def test_a_hole_over_many_batches_is_one_range(store, fill):
    """An overwritten block is one damaged range; sound batches on both sides are served."""
    path = log_of(store)
    data = bytearray(path.read_bytes())
    at = positions(data)
    start, end = at[3] + 10, at[8] - 10
    noise = random.Random(7).randbytes(end - start)
    data[start:end] = noise if fill is None else fill * (end - start)
    path.write_bytes(data)
    served, refused = read_all(store.partition(TP))
    assert refused == [(SPAN + 3 * RECORDS, SPAN + 8 * RECORDS)]
    assert len(served) == 4 * SPAN - 5 * RECORDS


def test_several_damaged_batches_are_several_ranges(store):
    """Adjacent damaged batches form one range; separate ranges are reported separately."""
    for batch in (2, 3, 7):
        change(store, batch, BODY)
    _, refused = read_all(store.partition(TP))
    assert refused == [
        (SPAN + 2 * RECORDS, SPAN + 4 * RECORDS),
        (SPAN + 7 * RECORDS, SPAN + 8 * RECORDS),
    ]
    assert len(store.health.damage(TP)) == store.health.damage_found == 2


def test_a_read_may_begin_anywhere_behind_the_damage(store):
    """A consumer can read from any offset after a damaged range without reading the range."""
    change(store, 5, 8, 0x40)  # the batch length is now wrong
    partition = store.partition(TP)
    for offset in range(SPAN + 6 * RECORDS, 2 * SPAN):
        assert partition.read(offset, 1).first_offset == offset - offset % RECORDS
    with pytest.raises(DamagedRecords, match=r"go on from offset 54 \(seq 55\)"):
        partition.read(SPAN + 5 * RECORDS + 1, 1)


def test_a_segment_whose_file_is_gone_is_one_range(store):
    """If a segment file is missing, its offsets are refused and the other segments are served."""
    log_of(store).unlink()
    served, refused = read_all(store.partition(TP))
    assert refused == [(SPAN, 2 * SPAN)]
    assert len(served) == 3 * SPAN
    log_of(store).touch()


def test_damage_in_the_active_segment_is_mapped_up_to_what_is_published(store):
    """Damage in the active segment is one refused range; later appends succeed and are served."""
    change(store, 4, BODY, segment=3)
    partition = store.partition(TP)
    first = 3 * SPAN + 4 * RECORDS
    assert read_all(partition)[1] == [(first, first + RECORDS)]
    append(partition, "new")
    served, refused = read_all(partition)
    assert (served[-1], refused) == (4 * SPAN, [(first, first + RECORDS)])


def test_times_are_found_past_the_damage(store):
    """A lookup by timestamp skips damaged batches and reports them."""
    change(store, 0, 8, 0x80)
    partition = store.partition(TP)
    store.segments.advance_start(TP, SPAN)
    found = partition.find_time(0)
    assert found is not None
    assert found.offset == SPAN + RECORDS
    assert partition.find_max_time() is not None
    assert len(store.health.damage(TP)) == 1


def test_retention_of_the_segment_ends_the_damage(store):
    """Dropping the damaged segment removes its damage report."""
    change(store, 5, BODY)
    partition = store.partition(TP)
    read_all(partition)
    assert store.health.damage(TP)
    partition.drop([0, SPAN])
    assert store.health.damage(TP) == []


def test_a_read_that_the_device_refuses_is_reported(store):
    """A file that cannot be opened is reported as a failed read, not as damage."""
    path = log_of(store)
    path.unlink()
    path.symlink_to(path.name)  # opening it fails with ELOOP, also for root
    with pytest.raises(CorruptionError, match="cannot be opened"):
        store.partition(TP).read(SPAN, 1)
    assert list(store.health.conditions(TP)) == [Condition.READ_FAILED]
    path.unlink()
    path.touch()
