"""Retention rounds: an error in one partition does not affect the others."""

from __future__ import annotations

import logging

import pytest

from cordwood.broker.jobs.archive import ArchiveService
from cordwood.broker.monitor import Monitor
from cordwood.errors import UnavailableError
from cordwood.log.health.registry import Condition
from cordwood.model import TopicPartition
from support.clock import ManualClock
from support.crash import FailingFiles, is_under
from support.kafka_services import KafkaServices

TOPICS = ("a-sick", "b-well")
SICK = TopicPartition("a-sick", 0)


@pytest.fixture
def files():
    return FailingFiles()


def a_monitor(services):
    archive = ArchiveService(services.store, services.metadata)
    args = services.config, services.store, services.topics, services.clock, None
    return Monitor(*args, archive=archive)


@pytest.fixture
async def services(tmp_path, files):
    """Two topics with one old segment each; the files of the first can be made to fail."""
    async with KafkaServices(tmp_path / "data", ManualClock(), files) as running:
        for name in TOPICS:
            await running.create(name, retention_ms=0, file_delete_delay_ms=0)
            await running.write(name, [b"old"])
        files.under = "a-sick-0"
        running.monitor = a_monitor(running)
        yield running
        files.refused = set()


def left(services):
    """Return the number of records still stored per topic."""
    found = {name: services.store.partition(TopicPartition(name, 0)) for name in TOPICS}
    return {name: p.high_watermark - p.log_start_offset for name, p in found.items()}


async def test_one_partitions_error_keeps_retention_from_no_other(services, files, caplog):
    """The failure is logged once for that partition, and cleared when a round succeeds."""
    caplog.set_level(logging.INFO)
    services.clock.advance(60_000)
    files.refused = {"create"}  # rolling a segment creates a file
    for _ in range(3):
        await services.monitor.run_round()
    assert left(services) == {"a-sick": 1, "b-well": 0}
    assert list(services.store.health.reasons(Condition.RETENTION_FAILED)) == [SICK]
    output = [r.message for r in caplog.records if "partition.retention_failed" in r.message]
    assert len(output) == 1
    files.refused = set()
    await services.monitor.run_round()
    assert left(services) == {"a-sick": 0, "b-well": 0}
    assert services.store.health.troubled() == []


async def test_an_offline_partition_is_reported_as_that_and_not_of_every_round(services, files):
    """A read-only partition keeps its condition; a round reports no retention failure for it."""
    files.refused = {"sync_dir"}
    with pytest.raises(UnavailableError):
        await services.topics.on_writer(lambda: services.store.partition(SICK).roll("demand"))
    files.refused = set()
    assert list(services.store.health.conditions(SICK)) == [Condition.READ_ONLY]
    services.clock.advance(60_000)
    await services.monitor.run_round()
    assert list(services.store.health.conditions(SICK)) == [Condition.READ_ONLY]
    assert left(services)["b-well"] == 0


class Deleting(FailingFiles):
    """Runs ``then`` on the writer thread when a file of the first topic is created."""

    then = staticmethod(lambda: None)

    def effect(self, name, path, act):
        """Run ``then`` once."""
        if name == "create" and is_under(path, "a-sick-0"):
            then, self.then = self.then, lambda: None
            then()
        return super().effect(name, path, act)


async def test_a_topic_deleted_meanwhile_is_no_error(tmp_path):
    """A topic deleted during a round is skipped, and the round continues with the others."""
    files = Deleting()
    async with KafkaServices(tmp_path / "data", ManualClock(), files) as services:
        for name in ("a-sick", "b-deleted", "b-well"):
            await services.create(name, retention_ms=0)
            await services.write(name, [b"old"])
        services.clock.advance(60_000)
        files.then = lambda: services.store.delete_topic("b-deleted")
        await a_monitor(services).run_round()
        assert sorted(services.store.topics) == ["a-sick", "b-well"]
        assert left(services) == {"a-sick": 0, "b-well": 0}
        assert services.store.health.troubled() == []


async def test_reclaim_on_demand_tries_all_and_then_says_what_failed(services, files):
    """RECLAIM on demand handles every partition, then raises the error."""
    services.clock.advance(60_000)
    files.refused = {"create"}
    with pytest.raises(UnavailableError):
        await services.monitor.reclaim(None)
    assert left(services) == {"a-sick": 1, "b-well": 0}


async def test_a_cut_on_demand_tries_every_partition(tmp_path, files):
    """An error in the first partition does not prevent a CUT of the second.

    The data directory's name contains the partition's name, as pytest's own directories can.
    """
    async with KafkaServices(tmp_path / "pytest-0", ManualClock(), files) as services:
        await services.create("t", 2)
        for partition in (0, 1):
            await services.write("t", [b"x"], partition=partition)
        monitor = a_monitor(services)
        files.refused, files.under = {"create"}, "t-0"
        with pytest.raises(UnavailableError):
            await monitor.cut("t")
        files.refused = set()
        counts = [len(services.store.partition(TopicPartition("t", n)).segments()) for n in (0, 1)]
        assert counts == [1, 2]
