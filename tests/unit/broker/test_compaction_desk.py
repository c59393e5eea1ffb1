"""The desk for compaction: who gets an order, what is remembered, and for how long."""

from __future__ import annotations

import pytest

from cordwood.broker.compaction import LEASE_MS
from cordwood.errors import CorruptionError, InvalidManifest, StaleManifest
from cordwood.model import TopicPartition
from cordwood.pipeline.compact import Lookout, in_process, run_due
from support.compaction import TP, Yard
from support.stores import append_sealed

BEGIN = {"action": "begin", "topic": None, "demand": False, "dry": False}


@pytest.fixture
def yard(tmp_path):
    with Yard(tmp_path / "data") as made:
        made.append((b"a", b"1"), (b"a", b"2"))
        made.cut()
        yield made


def begin(yard, **changes):
    return yard.post("/api/compaction", {**BEGIN, **changes})["orders"]


def finish(yard, order, **changes):
    said = {name: order[name] for name in ("topic_id", "lease")} | {
        "action": "finish",
        "topic": "t",
        "partition": 0,
        "jobs": [],
        "state": {**order["state"], "clean_end": order["bound"]},
    }
    yard.post("/api/compaction", {**said, **changes})


def test_a_partition_given_out_is_not_given_out_again_until_its_lease_ends(yard):
    """A job that died holds its partition for a while, not for ever."""
    assert len(begin(yard)) == 1
    assert begin(yard) == []
    yard.clock.advance(LEASE_MS)
    assert len(begin(yard)) == 1


def test_a_dry_order_takes_no_lease_and_cuts_nothing(yard):
    """It is for looking only."""
    yard.append((b"b", b"1"))
    assert len(begin(yard, topic="t", demand=True, dry=True)[0]["segments"]) == 1
    assert len(begin(yard)) == 1


def test_demand_cuts_the_active_segment_first(yard):
    """``--now`` takes everything."""
    yard.append((b"b", b"1"))
    assert len(begin(yard, topic="t", demand=True)[0]["segments"]) == 2


def test_released_a_partition_may_be_given_out_at_once(yard):
    """And nothing is remembered against it."""
    (order,) = begin(yard)
    said = {"action": "release", "topic": "t", "partition": 0}
    yard.post("/api/compaction", {**said, "lease": "another's"})
    assert begin(yard) == []
    yard.post("/api/compaction", {**said, "lease": order["lease"]})
    assert len(begin(yard)) == 1
    assert yard.state().failures == 0


def report_failure(yard, order, error):
    """As the job that was given the order."""
    where = {"topic": "t", "partition": 0, "lease": order["lease"]}
    yard.post("/api/compaction", {"action": "fail", **where, "error": error})


def test_failures_are_remembered_through_a_restart(yard, tmp_path):
    """Kafka forgets; and so a broken partition fails again at every start."""
    (order,) = begin(yard)
    report_failure(yard, order, "no space")
    yard.close()
    with Yard(tmp_path / "data", clock=yard.clock) as again:
        assert (again.state().failures, again.state().error) == (1, "no space")
        assert list(again.desk.quarantined()) == [TP]


def test_a_success_ends_the_quarantine(yard):
    """An operator may try at any time."""
    (order,) = begin(yard)
    report_failure(yard, order, "x")
    assert yard.state().failures == 1
    yard.compact_well()
    assert (yard.state().failures, yard.desk.quarantined()) == (0, {})


def test_a_report_about_another_topic_of_the_name_is_stale(yard):
    """The topic was deleted and made again while the job ran."""
    (order,) = begin(yard)
    with pytest.raises(StaleManifest):
        finish(yard, order, topic_id="another")


@pytest.mark.parametrize("clean_end", [-1, 3, 10**9])
def test_a_clean_end_that_is_no_sealed_offset_is_refused(yard, clean_end):
    """Nothing unsealed is ever clean."""
    (order,) = begin(yard)
    with pytest.raises(StaleManifest):
        finish(yard, order, state={**order["state"], "clean_end": clean_end})
    assert yard.state().clean_end == 0


def test_a_state_that_does_not_parse_is_refused_and_counts_as_a_failure(yard):
    """A store with it could not be opened."""
    (order,) = begin(yard)
    with pytest.raises(InvalidManifest):
        finish(yard, order, state={"clean_end": "two"})
    assert yard.state().failures == 1


def test_a_clean_end_past_the_log_is_reset_and_written_down(yard):
    """[13] Also when no pass follows."""
    yard.compact_well()
    yard.store.advance_start(TP, 2)
    yard.append((b"b", b"1"))
    yard.store.advance_start(TP, 3)
    begin(yard)
    assert yard.state().clean_end == 3


def test_what_is_remembered_goes_with_the_topic(yard):
    """[40] A new topic of the name starts from nothing."""
    yard.compact_well()
    yard.store.delete_topic("t")
    yard.store.create_topic("t", 1, {"cleanup.policy": "compact"})
    assert yard.state().passes == 0


def test_the_lookout_waits_its_delay_and_then_its_interval(yard):
    """First after ``compaction.delay.ms``, then every ``compaction.interval.ms``."""
    now = [100.0]
    yard.get = lambda path, **params: {"schedule": {"delay_ms": 60_000, "interval_ms": 300_000}}
    lookout = Lookout(100.0, lambda: now[0])
    looked = []
    for at in (100, 159, 160, 161, 459, 460):
        now[0] = float(at)
        looked.append(lookout.look(yard, in_process) is not None)
    assert looked == [False, False, True, False, False, True]
    assert yard.state().passes == 1


def test_a_partition_that_cannot_be_ordered_keeps_no_other_from_its_order(yard):
    """It is quarantined by name; before, the leases of the others were lost with it."""
    yard.store.create_topic("z", 1, {"cleanup.policy": "compact"})
    append_sealed(yard.store, "aab", tp=TopicPartition("z", 0))

    def unreadable(start, end):
        raise CorruptionError("its .txnindex is damaged")

    yard.store.partition(TP).aborted = unreadable
    assert [order["topic"] for order in begin(yard)] == ["z"]
    assert yard.desk.quarantined() == {TP: "its .txnindex is damaged"}
    assert begin(yard) == []


def test_a_damaged_segment_is_not_compacted_and_quarantines_its_partition(yard):
    """What cannot be read cannot be rewritten: the files stay as they are."""
    log = yard.store.data / str(TP) / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    (outcome,) = run_due(yard, in_process)
    assert outcome.error
    assert list(yard.desk.quarantined()) == [TP]
    assert log.read_bytes() == data
