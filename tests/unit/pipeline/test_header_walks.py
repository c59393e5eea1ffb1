"""What archive and audit learn of a partition from its batch headers alone; no Spark needed."""

from __future__ import annotations

import pytest

from cordwood.batch.records import encode_batch, encode_marker
from cordwood.decide.archive import Run
from cordwood.decide.audit import audit_partition
from cordwood.model import TopicPartition
from cordwood.pipeline.archive import look_task
from cordwood.pipeline.audit import walk_task
from cordwood.pipeline.offsets import Range
from cordwood.pipeline.options import parse_options
from support.datadir import HandMade, make_data_directory, records

TP = TopicPartition("t", 0)


@pytest.fixture
def made(tmp_path):
    data = make_data_directory(tmp_path / "data")
    partition = HandMade(data, TP)
    yield partition
    partition.close()


def options(made):
    said = {"subscribe": "t", "path": str(made.directory.parent)}
    return parse_options(said, streaming=False)


def audited(made, start=0):
    made.publish()
    whole = Range(TP, start, made.end)
    piece = walk_task((options(made), whole))
    return audit_partition(*TP, (start, made.end), [piece], compacted=False)


def test_batches_that_follow_each_other_are_sound(made):
    """Over a cut, and with a transaction's marker between them."""
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
    """Offsets 5 and 6 between batches, 8 inside one."""
    made.append(records(0, 5))
    made.append([each for each in records(7, 10) if each.offset != 8])
    assert audited(made).missing == 3


def test_a_batch_sent_twice_is_a_duplicate(made):
    """A producer's numbers come once."""
    for start in (0, 5):
        made.append(
            encode_batch(
                records(start, start + 5), producer_id=9, producer_epoch=0, base_sequence=0
            )
        )
    assert audited(made).duplicates == 1


def test_bundles_are_cut_by_what_headers_say(made):
    """Markers hold no record; batches outside the range are left out."""
    made.append(records(0, 5), records(5, 9))
    made.cut()
    made.append(records(9, 10))
    made.publish()
    runs = look_task((options(made), Range(TP, 6, 10)))
    assert [run[:3] for run in runs] == [(5, 9, 4), (9, 10, 1)]
    assert all(isinstance(run, Run) and run.is_dense for run in runs)
