"""The compaction service: which partitions get an order, what state is stored, and for how long."""

from __future__ import annotations

import pytest

from cordwood.broker.jobs.compaction import LEASE_MS
from cordwood.errors import CorruptionError, RequestError, StaleManifest
from cordwood.model import TopicPartition
from cordwood.pipeline.compact.job import CompactionSchedule, run_due
from cordwood.protocol.api.compaction import CompactionStatus, CompactionTimes
from support.compaction import TP, CompactionHarness, in_process
from support.stores import append_sealed

BEGIN = {"action": "begin", "topic": None, "demand": False, "dry": False}


@pytest.fixture
def harness(tmp_path):
    with CompactionHarness(tmp_path / "data") as made:
        made.append((b"a", b"1"), (b"a", b"2"))
        made.cut()
        yield made


def begin(harness, **changes):
    return list(harness.post({**BEGIN, **changes})["orders"])


def finish(harness, order, **changes):
    options = {name: order[name] for name in ("topic_id", "lease")} | {
        "action": "finish",
        "topic": "t",
        "partition": 0,
        "jobs": [],
        "state": {**order["state"], "clean_end": order["bound"]},
    }
    harness.post({**options, **changes})


def test_a_partition_given_out_is_not_given_out_again_until_its_lease_ends(harness):
    """A job that died holds its partition only until the lease expires."""
    assert len(begin(harness)) == 1
    assert begin(harness) == []
    harness.clock.advance(LEASE_MS)
    assert len(begin(harness)) == 1


def test_a_dry_order_takes_no_lease_and_cuts_nothing(harness):
    """A dry run takes no lease and does not roll the active segment."""
    harness.append((b"b", b"1"))
    assert len(begin(harness, topic="t", demand=True, dry=True)[0]["segments"]) == 1
    assert len(begin(harness)) == 1


def test_demand_cuts_the_active_segment_first(harness):
    """``--now`` rolls the active segment first, so that all records are compacted."""
    harness.append((b"b", b"1"))
    assert len(begin(harness, topic="t", demand=True)[0]["segments"]) == 2


def test_released_a_partition_may_be_given_out_at_once(harness):
    """Only the lease holder can release a partition. A release does not count as a failure."""
    (order,) = begin(harness)
    options = {"action": "release", "topic": "t", "partition": 0}
    harness.post({**options, "lease": "another's"})
    assert begin(harness) == []
    harness.post({**options, "lease": order["lease"]})
    assert len(begin(harness)) == 1
    assert harness.state().failures == 0


def report_failure(harness, order, error):
    """Report a failure as the job that holds the order's lease."""
    where = {"topic": "t", "partition": 0, "lease": order["lease"]}
    harness.post({"action": "fail", **where, "error": error})


def test_failures_are_remembered_through_a_restart(harness, tmp_path):
    """The failure count and error are stored, so a restart keeps the partition quarantined."""
    (order,) = begin(harness)
    report_failure(harness, order, "no space")
    harness.close()
    with CompactionHarness(tmp_path / "data", clock=harness.clock) as again:
        assert (again.state().failures, again.state().error) == (1, "no space")
        assert list(again.service.quarantined()) == [TP]


def test_a_success_ends_the_quarantine(harness):
    """A successful compaction resets the failure count and ends the quarantine."""
    (order,) = begin(harness)
    report_failure(harness, order, "x")
    assert harness.state().failures == 1
    harness.compact_well()
    assert (harness.state().failures, harness.service.quarantined()) == (0, {})


def test_a_report_about_another_topic_of_the_name_is_stale(harness):
    """A report is refused if the topic was deleted and created again while the job ran."""
    (order,) = begin(harness)
    with pytest.raises(StaleManifest):
        finish(harness, order, topic_id="another")


@pytest.mark.parametrize("clean_end", [-1, 3, 10**9])
def test_a_clean_end_that_is_no_sealed_offset_is_refused(harness, clean_end):
    """A clean end outside the sealed segments is refused and not stored."""
    (order,) = begin(harness)
    with pytest.raises(StaleManifest):
        finish(harness, order, state={**order["state"], "clean_end": clean_end})
    assert harness.state().clean_end == 0


def test_a_state_that_does_not_parse_is_refused_by_its_field_and_stored_nowhere(harness):
    """The store could not load an invalid state, so it is refused with the field's name."""
    (order,) = begin(harness)
    with pytest.raises(RequestError, match=r"\$\.state\.clean_end: expected int, got str"):
        finish(harness, order, state={"clean_end": "two"})
    assert harness.state().passes == 0
    report_failure(harness, order, "its report was refused")
    assert harness.state().failures == 1


def test_a_clean_end_past_the_log_is_reset_and_written_down(harness):
    """[13] A clean end below the log start is reset and stored, even if no pass follows."""
    harness.compact_well()
    harness.store.segments.advance_start(TP, 2)
    harness.append((b"b", b"1"))
    harness.store.segments.advance_start(TP, 3)
    begin(harness)
    assert harness.state().clean_end == 3


def test_what_is_remembered_goes_with_the_topic(harness):
    """[40] Deleting a topic deletes its compaction state, so a new topic starts without it."""
    harness.compact_well()
    harness.store.delete_topic("t")
    harness.store.create_topic("t", 1, {"cleanup.policy": "compact"})
    assert harness.state().passes == 0


def test_the_schedule_waits_its_delay_and_then_its_interval(harness):
    """Passes start after ``compaction.delay.ms``, then every ``compaction.interval.ms``."""
    now = [100.0]
    times = CompactionTimes(interval_ms=300_000, delay_ms=60_000)
    harness.status = CompactionStatus(times)
    schedule = CompactionSchedule(100.0, lambda: now[0])
    looked = []
    for at in (100, 159, 160, 161, 459, 460):
        now[0] = float(at)
        looked.append(schedule.run_if_due(harness, in_process) is not None)
    assert looked == [False, False, True, False, False, True]
    assert harness.state().passes == 1


def test_a_partition_that_cannot_be_ordered_keeps_no_other_from_its_order(harness):
    """A partition whose order fails is quarantined. Other partitions still get their orders."""
    harness.store.create_topic("z", 1, {"cleanup.policy": "compact"})
    append_sealed(harness.store, "aab", tp=TopicPartition("z", 0))

    def unreadable(start, end):
        raise CorruptionError("its .txnindex is damaged")

    harness.store.partition(TP).aborted = unreadable
    assert [order["topic"] for order in begin(harness)] == ["z"]
    assert harness.service.quarantined() == {TP: "its .txnindex is damaged"}
    assert begin(harness) == []


def test_a_damaged_segment_is_not_compacted_and_quarantines_its_partition(harness):
    """Compaction of a damaged segment fails and leaves its files unchanged."""
    log = harness.store.data / str(TP) / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    (outcome,) = run_due(harness, in_process)
    assert outcome.error
    assert list(harness.service.quarantined()) == [TP]
    assert log.read_bytes() == data
