"""The health registry: the known problems of every partition, each reported and logged once."""

from __future__ import annotations

import logging

import pytest

from cordwood.errors import PartitionOffline, ShuttingDown, UnavailableError
from cordwood.log.health.registry import RANGES_MAX, Condition, DamagedRange, HealthRegistry
from cordwood.model import TopicPartition
from support.crash import FailingFiles
from support.stores import TP, append, append_sealed, open_store

OTHER = TopicPartition("other", 3)


def logged(caplog, event):
    return [record.message for record in caplog.records if record.message.startswith(event)]


@pytest.fixture
def registry(caplog):
    caplog.set_level(logging.INFO)
    return HealthRegistry()


def test_a_condition_is_logged_when_it_changes_and_not_when_it_is_repeated(registry, caplog):
    """A repeated report with the same reason is not logged again."""
    for reason in ("no space", "no space", "I/O error"):
        registry.report(TP, Condition.RETENTION_FAILED, reason)
    assert len(logged(caplog, "partition.retention_failed")) == 2
    assert registry.reasons(Condition.RETENTION_FAILED) == {TP: "I/O error"}
    registry.resolve(TP, Condition.RETENTION_FAILED)
    registry.resolve(TP, Condition.RETENTION_FAILED)
    assert len(logged(caplog, "partition.recovered")) == 1
    assert registry.troubled() == []


def test_damage_is_counted_and_logged_once_per_range(registry, caplog):
    """A known range is not logged again, and a wider range replaces the ranges inside it."""
    heard = []
    registry.on_damage(lambda tp, segment: heard.append((tp, segment)))
    for start, end in ((10, 20), (10, 20), (12, 15), (5, 25), (40, 41)):
        registry.report_damage(TP, DamagedRange(0, start, end, "bad"))
    assert [(r.start_offset, r.end_offset) for r in registry.damage(TP)] == [(5, 25), (40, 41)]
    assert len(logged(caplog, "partition.damaged")) == registry.damage_found == 3
    assert heard == [(TP, 0)] * 3


def test_a_segment_read_through_says_all_that_is_damaged_in_it(registry, caplog):
    """``set_damage`` replaces the ranges of one segment and keeps those of other segments."""
    registry.report_damage(TP, DamagedRange(0, 1, 2, "bad"))
    registry.report_damage(TP, DamagedRange(100, 101, 102, "bad"))
    registry.set_damage(TP, 0, ())
    assert [r.segment for r in registry.damage(TP)] == [100]
    assert len(logged(caplog, "partition.recovered")) == 1
    registry.set_damage(TP, 100, [DamagedRange(100, 101, 102, "bad")])
    assert registry.damage_found == 2


def test_damage_below_the_log_start_is_nobodys_any_more(registry):
    """Damaged ranges below the log start are removed from the registry."""
    for start in (10, 20):
        registry.report_damage(TP, DamagedRange(0, start, start + 5, "bad"))
    registry.end_damage(TP, below=15)
    assert [r.start_offset for r in registry.damage(TP)] == [20]
    registry.end_damage(TP, below=30)
    assert registry.damaged() == {}


def test_a_deleted_topic_has_nothing_wrong_with_it(registry):
    """Deleting a topic removes its problems and keeps those of other topics."""
    for tp in (TP, OTHER):
        registry.report(tp, Condition.OFFLINE, "gone")
        registry.report_damage(tp, DamagedRange(0, 1, 2, "bad"))
    registry.forget(TP.topic)
    assert registry.troubled() == [OTHER]


def test_a_dying_disk_does_not_fill_the_memory(registry):
    """The number of damaged ranges per partition is bounded."""
    for start in range(0, 2 * RANGES_MAX + 2, 2):
        registry.report_damage(TP, DamagedRange(0, start, start + 1, "bad"))
    assert len(registry.damage(TP)) == RANGES_MAX


def test_an_error_ends_its_block_and_not_the_round(registry):
    """``guard`` reports an error without raising it; a later success resolves the report."""
    for error in (UnavailableError("disk"), OSError(5, "disk")):
        with registry.guard(TP, Condition.PURGE_FAILED, lambda: False):
            raise error
        assert TP in registry.reasons(Condition.PURGE_FAILED)
        with registry.guard(TP, Condition.PURGE_FAILED, lambda: False):
            pass
        assert registry.troubled() == []


def test_what_is_expected_is_not_reported(registry):
    """``guard`` does not report expected errors or ``ShuttingDown``."""
    with registry.guard(TP, Condition.RETENTION_FAILED, lambda: True):
        raise PartitionOffline("known")
    with registry.guard(TP, Condition.RETENTION_FAILED, lambda: False):
        raise ShuttingDown("stopping")
    assert registry.troubled() == []


def test_our_own_mistakes_pass(registry):
    """``guard`` does not catch a failed assertion."""
    with pytest.raises(AssertionError), registry.guard(TP, Condition.PURGE_FAILED, lambda: False):
        raise AssertionError


# --- reported by the log ----------------------------------------------------------------------


def test_a_failed_sync_makes_the_partition_read_only_and_reported(tmp_path):
    """A failed fsync is reported as READ_ONLY; closing the store adds no other condition."""
    files = FailingFiles()
    store = open_store(tmp_path / "data", files)
    store.create_topic("t", 1)
    append(store.partition(TP), "a")
    files.refused = {"sync_data"}
    with pytest.raises(PartitionOffline):
        append(store.partition(TP), "b")
    files.refused = set()
    (reason,) = store.health.reasons(Condition.READ_ONLY).values()
    assert "a sync failed" in reason
    store.close()
    assert list(store.health.conditions(TP)) == [Condition.READ_ONLY]


def test_closing_and_deleting_leave_nothing_to_report(tmp_path):
    """Closing a store and deleting a topic are not reported as problems."""
    store = open_store(tmp_path / "data")
    for name in ("t", "other"):
        store.create_topic(name, 1)
    store.delete_topic("other")
    store.close()
    assert store.health.troubled() == []


def test_one_partition_that_cannot_be_hashed_keeps_no_other_from_it(tmp_path):
    """If one partition's segment cannot be hashed, the other partitions are still indexed."""
    store = open_store(tmp_path / "data")
    for name in ("a", "b"):
        store.create_topic(name, 1)
        append_sealed(store, "xy", tp=TopicPartition(name, 0))
    log = min((tmp_path / "data" / "a-0").glob("*.log"))  # the sealed one
    log.unlink()
    log.mkdir()  # cannot be read as a file
    assert store.segments.hash_sealed() == 1
    assert list(store.health.reasons(Condition.INDEXING_FAILED)) == [TopicPartition("a", 0)]
    log.rmdir()
    store.close()


def test_files_that_cannot_be_removed_are_tried_again_and_keep_no_others(tmp_path):
    """A file that cannot be deleted is retried later, and the other files are deleted."""
    files = FailingFiles()
    store = open_store(tmp_path / "data", files)
    store.create_topic("t", 1, {"file.delete.delay.ms": 0})
    append_sealed(store, "a", "b")
    partition = store.partition(TP)
    for segment in partition.segments()[:2]:
        partition.drop([segment.base_offset])
    files.refused, files.under = {"unlink"}, f"{0:020}"
    with pytest.raises(UnavailableError):
        partition.purge_deleted(10**15)
    left = {path.name[:20] for path in (tmp_path / "data" / "t-0").glob("*.deleted")}
    assert left == {f"{0:020}"}
    files.refused = set()
    assert partition.purge_deleted(10**15) > 0
    assert not list((tmp_path / "data" / "t-0").glob("*.deleted"))
    store.close()


def test_a_deletion_that_cannot_be_finished_does_not_stop_a_start(tmp_path):
    """A failed topic deletion is retried at the next start; the other topics are served."""
    files = FailingFiles()
    store = open_store(tmp_path / "data", files)
    for name in ("t", "other"):
        store.create_topic(name, 1)
    files.refused, files.under = {"rename"}, "other-0"
    with pytest.raises(UnavailableError):
        store.delete_topic("other")
    store.close()
    again = open_store(tmp_path / "data", files)
    assert list(again.topics) == ["t"]
    again.close()
    files.refused = set()
    last = open_store(tmp_path / "data", files)
    assert not (tmp_path / "data" / "other-0").exists()
    last.close()
