"""What archive and audit compute from batch headers alone, without Spark."""

from __future__ import annotations

import pytest

from cordwood.batch.records import encode_batch, encode_marker
from cordwood.decide.archive import BatchSpan, Span, planned_records
from cordwood.decide.audit import RangeAudit, audit_partition
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.header_runs import (
    count_planned,
    cut_bundles,
    read_runs,
    without_repeats,
)
from cordwood.pipeline.audit.job import AuditTask, walk_task
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import parse_options
from support.datadir import HandMade, make_data_directory, records

TP = TopicPartition("t", 0)


@pytest.fixture
def made(tmp_path):
    data = make_data_directory(tmp_path / "data")
    partition = HandMade(data, TP)
    yield partition
    partition.close()


def options(made):
    fields = {"subscribe": "t", "path": str(made.directory.parent)}
    return parse_options(fields, streaming=False)


def audited(made, start=0):
    made.publish()
    whole = Range(TP, start, made.end)
    walked = [
        row for batch in walk_task(AuditTask(0, options(made), whole)) for row in batch.to_pylist()
    ]
    *numbered, last = walked
    numbers = [(row["producer"], row["epoch"], row["sequence"]) for row in numbered]
    again = len(numbers) - len(set(numbers))
    piece = RangeAudit(**last["piece"])
    return audit_partition(*TP, (start, made.end), [piece], compacted=False, renumbered=again)


def test_batches_that_follow_each_other_are_sound(made):
    """Consecutive batches are complete, across segments and with a transaction marker between."""
    made.append(records(0, 5))
    made.cut()
    marker = encode_marker(
        True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    made.append((5).to_bytes(8, "big") + marker[8:])
    made.append(records(6, 9))
    found = audited(made)
    assert (found.records, found.markers, found.missing, found.duplicates) == (8, 1, 0, 0)


def test_a_hole_and_a_thinned_batch_are_missing(made):
    """Missing offsets are counted between batches and inside a batch."""
    made.append(records(0, 5))
    made.append([each for each in records(7, 10) if each.offset != 8])
    assert audited(made).missing == 3


def test_a_batch_sent_twice_is_a_duplicate(made):
    """A batch with the same producer sequence as another is a duplicate."""
    for start in (0, 5):
        made.append(
            encode_batch(
                records(start, start + 5), producer_id=9, producer_epoch=0, base_sequence=0
            )
        )
    assert audited(made).duplicates == 1


def test_bundles_are_cut_by_what_headers_say(made):
    """Runs are read from batch headers, and only batches that overlap the range are included."""
    made.append(records(0, 5), records(5, 9))
    made.cut()
    made.append(records(9, 10))
    made.publish()
    runs = list(read_runs(options(made), Range(TP, 6, 10)))
    assert [run[:3] for run in runs] == [(5, 9, 4), (9, 10, 1)]
    assert all(isinstance(run, BatchSpan) and run.is_dense for run in runs)


class Counted(BatchSpan):
    """A run that counts how many instances are alive."""

    alive = most = 0

    def __new__(cls, *fields):
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        return super().__new__(cls, *fields)

    def __del__(self):
        Counted.alive -= 1


@pytest.mark.parametrize("batches", [100, 10_000])
def test_bundles_are_cut_without_holding_the_batches(batches):
    """Bundles are planned from a stream of runs, with only a few runs in memory at a time."""
    Counted.alive = Counted.most = 0
    runs = ((TP, Counted(at, at + 1, 1, 100)) for at in range(batches))
    due = [(TopicPartition("t", 9), Span(3, 5)), (TP, Span(0, batches))]
    spans = cut_bundles(runs, due, records_max=batches // 4, bytes_max=1 << 40)
    assert spans[TP] == [Span(at * batches // 4, (at + 1) * batches // 4) for at in range(4)]
    assert spans[TopicPartition("t", 9)] == [Span(3, 5)], "nothing was found of it: one bundle"
    assert Counted.most < 10


def test_a_batch_that_two_ranges_share_is_counted_once():
    """A batch that overlaps two ranges is counted once."""
    first, shared = BatchSpan(0, 10, 10, 1), BatchSpan(10, 20, 10, 1)
    other = TopicPartition("t", 1)
    runs = [(TP, first), (TP, shared), (TP, shared), (other, first)]
    assert list(without_repeats(runs)) == [(TP, first), (TP, shared), (other, first)]


def test_what_bundles_will_hold_is_counted_in_one_pass():
    """Records per bundle are counted in one pass, with the same result as ``planned_records``."""
    runs = [BatchSpan(0, 30, 30, 1), BatchSpan(30, 40, 4, 1), BatchSpan(45, 50, 5, 1)]
    spans = [(TP, Span(0, 10)), (TP, Span(10, 35)), (TP, Span(35, 50)), (TP, Span(60, 70))]
    counts = count_planned(((TP, run) for run in runs), spans)
    assert counts == {(tp, span): planned_records(runs, span) for tp, span in spans}
