"""When records that were acknowledged without a sync are synced after all."""

from __future__ import annotations

from cordwood.config import TopicConfig
from cordwood.log.write.flush import UnsyncedRecords, is_tracked
from support.logs import open_partition


def test_sync_is_due_after_flush_messages_records(tmp_path):
    """A sync is due once flush.messages records are not synced, and not again after it."""
    partition, unsynced = open_partition(tmp_path, TopicConfig(flush_messages=5)), UnsyncedRecords()
    assert not unsynced.add(partition, 4, now_ms=0)
    assert unsynced.add(partition, 1, now_ms=0)
    unsynced.forget(partition)
    assert unsynced.is_empty
    assert not unsynced.add(partition, 4, now_ms=0)


def test_sync_is_due_flush_ms_after_the_first_unsynced_record(tmp_path):
    """The age counts from the oldest unsynced record, at an append and without one."""
    partition, unsynced = open_partition(tmp_path, TopicConfig(flush_ms=100)), UnsyncedRecords()
    assert not unsynced.add(partition, 1, now_ms=1000)
    assert not unsynced.add(partition, 1, now_ms=1099)
    assert unsynced.overdue(1099) == []
    assert unsynced.overdue(1100) == [partition]
    assert unsynced.add(partition, 1, now_ms=1100)


def test_topic_without_flush_settings_is_not_tracked():
    """Records are counted only where flush.messages or flush.ms is set."""
    assert not is_tracked(TopicConfig())
    assert is_tracked(TopicConfig(flush_messages=5))
    assert is_tracked(TopicConfig(flush_ms=100))


def test_closed_partition_is_forgotten(tmp_path):
    """A deleted or broken partition is neither kept nor synced."""
    partition, unsynced = open_partition(tmp_path, TopicConfig(flush_ms=1)), UnsyncedRecords()
    unsynced.add(partition, 1, now_ms=0)
    partition.abandon("its topic was deleted")
    assert unsynced.overdue(10) == []
    assert unsynced.is_empty
