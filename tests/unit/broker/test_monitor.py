"""Retention rounds: one partition's trouble is its own."""

from __future__ import annotations

import logging

import pytest

from cordwood.broker.archive import ArchiveDesk
from cordwood.broker.monitor import Monitor
from cordwood.clock import ManualClock
from cordwood.errors import UnavailableError
from cordwood.log.registry import Condition
from cordwood.model import TopicPartition
from support.crash import FailingFiles, is_under
from support.kafka_desks import KafkaDesks

TOPICS = ("a-sick", "b-well")
SICK = TopicPartition("a-sick", 0)


@pytest.fixture
def files():
    return FailingFiles()


def a_monitor(desks):
    archive = ArchiveDesk(desks.store, desks.meta_thread)
    args = desks.config, desks.store, desks.topics, desks.clock, desks.meta_thread
    return Monitor(*args, archive=archive)


@pytest.fixture
async def desks(tmp_path, files):
    """Two topics with one old segment each; the files of the first can be made to fail."""
    async with KafkaDesks(tmp_path / "data", ManualClock(), files) as running:
        for name in TOPICS:
            await running.create(name, retention_ms=0, file_delete_delay_ms=0)
            await running.write(name, [b"old"])
        files.under = "a-sick-0"
        running.monitor = a_monitor(running)
        yield running
        files.refused = set()


def left(desks):
    """Topic → records still there."""
    found = {name: desks.store.partition(TopicPartition(name, 0)) for name in TOPICS}
    return {name: p.high_watermark - p.log_start_offset for name, p in found.items()}


async def test_one_partitions_error_keeps_retention_from_no_other(desks, files, caplog):
    """It is reported of that partition, once, and taken back when a round succeeds."""
    caplog.set_level(logging.INFO)
    desks.clock.advance(60_000)
    files.refused = {"create"}  # a cut needs a new file
    for _ in range(3):
        await desks.monitor.look()
    assert left(desks) == {"a-sick": 1, "b-well": 0}
    assert list(desks.store.health.reasons(Condition.RETENTION_FAILED)) == [SICK]
    said = [r.message for r in caplog.records if "partition.retention_failed" in r.message]
    assert len(said) == 1
    files.refused = set()
    await desks.monitor.look()
    assert left(desks) == {"a-sick": 0, "b-well": 0}
    assert desks.store.health.troubled() == []


async def test_an_offline_partition_is_reported_as_that_and_not_of_every_round(desks, files):
    """What took it offline is known already."""
    files.refused = {"sync_dir"}
    with pytest.raises(UnavailableError):
        await desks.topics.on_writer(lambda: desks.store.partition(SICK).roll("demand"))
    files.refused = set()
    assert list(desks.store.health.conditions(SICK)) == [Condition.READ_ONLY]
    desks.clock.advance(60_000)
    await desks.monitor.look()
    assert list(desks.store.health.conditions(SICK)) == [Condition.READ_ONLY]
    assert left(desks)["b-well"] == 0


class Deleting(FailingFiles):
    """Runs ``then`` on the writer thread when a file of the first topic is created."""

    then = staticmethod(lambda: None)

    def effect(self, name, path, act):
        """Once."""
        if name == "create" and is_under(path, "a-sick-0"):
            then, self.then = self.then, lambda: None
            then()
        return super().effect(name, path, act)


async def test_a_topic_deleted_meanwhile_is_no_error(tmp_path):
    """The round had it on its list; the others come all the same."""
    files = Deleting()
    async with KafkaDesks(tmp_path / "data", ManualClock(), files) as desks:
        for name in ("a-sick", "b-deleted", "b-well"):
            await desks.create(name, retention_ms=0)
            await desks.write(name, [b"old"])
        desks.clock.advance(60_000)
        files.then = lambda: desks.store.delete_topic("b-deleted")
        await a_monitor(desks).look()
        assert sorted(desks.store.topics) == ["a-sick", "b-well"]
        assert left(desks) == {"a-sick": 0, "b-well": 0}
        assert desks.store.health.troubled() == []


async def test_reclaim_on_demand_tries_all_and_then_says_what_failed(desks, files):
    """An operator hears the error, and it has cost nobody else anything."""
    desks.clock.advance(60_000)
    files.refused = {"create"}
    with pytest.raises(UnavailableError):
        await desks.monitor.reclaim(None)
    assert left(desks) == {"a-sick": 1, "b-well": 0}


async def test_a_cut_on_demand_tries_every_partition(tmp_path, files):
    """The first partition's error does not keep the second from being cut.

    The directory has the partition's name in its own, as pytest's first one on a machine has.
    """
    async with KafkaDesks(tmp_path / "pytest-0", ManualClock(), files) as desks:
        await desks.create("t", 2)
        for partition in (0, 1):
            await desks.write("t", [b"x"], partition=partition)
        monitor = a_monitor(desks)
        files.refused, files.under = {"create"}, "t-0"
        with pytest.raises(UnavailableError):
            await monitor.cut("t")
        files.refused = set()
        counts = [len(desks.store.partition(TopicPartition("t", n)).segments()) for n in (0, 1)]
        assert counts == [1, 2]
