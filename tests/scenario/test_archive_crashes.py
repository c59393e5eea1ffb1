"""Kill ``archive create`` and ``archive restore`` before each of their effects.

In every case, even if the topic changes meanwhile, the archive verifies at any time, RECLAIM
removes only verified records, and the next run archives or restores every record exactly once.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise

import pytest

from cordwood.batch.records import decode_committed, encode_batch
from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import TopicArchive
from cordwood.decide.archive import topic_archive_name
from cordwood.errors import CordwoodError, StaleManifest, UnavailableError, UnknownTopic
from cordwood.log.format.bundle import read_batches
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.archive import ArchiveRequest, bundle_task, create_archive, restore_archive
from cordwood.pipeline.archive import job as archive_job
from cordwood.pipeline.archive import restore as restore_job
from cordwood.pipeline.runtime import job_labels, probe
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.testing import Broker
from support.steps import (
    Killed,
    SteppingApi,
    SteppingStorage,
    Steps,
    in_process,
    scanned_in_process,
    unlabelled,
)

RECORDS = 30
BUNDLE = 16
READER = "r"
OUTCOMES = ("kept", "deleted", "created again")


class House:
    """A broker for the whole module that creates a new topic for each test."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.where = BrokerAddress(broker.kafka)
        self.api = BrokerApi(self.where)
        self.kafka = KafkaClient(broker.kafka)
        self.control = Client(broker.control)
        self._names = (f"t{number}" for number in count())

    def topic(self) -> str:
        name = next(self._names)
        self.create(name, b"old")
        return name

    def create(self, name: str, word: bytes, records: int = RECORDS) -> None:
        """Create a topic whose segments are reclaimed once they are read and archived."""
        config = {"cleanup.policy": "consume", "archive.required": "true"}
        self.kafka.create_topic(name, 1, config)
        rows = [Record(i, 1000 + i, b"k%d" % i, b"%s %d" % (word, i)) for i in range(records)]
        for first in range(0, records, 10):
            batch = [replace(row, offset=i) for i, row in enumerate(rows[first : first + 10])]
            self.kafka.produce(TopicPartition(name, 0), encode_batch(batch))
        self.control.cut(name)
        self.control.register(name, READER)
        self.control.ack(name, READER, records)

    def suffer(self, name: str, outcome: str) -> None:
        """Keep, delete or recreate the topic."""
        if outcome != "kept":
            self.kafka.delete_topic(name)
        if outcome == "created again":
            self.create(name, b"new")

    def values(self, name: str) -> list[bytes]:
        """Return the values that the log still holds."""
        tp = TopicPartition(name, 0)
        start, end, found = self.kafka.offset(tp, -2), self.kafka.offset(tp, -1), []
        while start < end:
            data = bytes(self.kafka.fetch({tp: start}, max_wait_ms=0)[tp].records or b"")
            records = [record for record in decode_committed(data) if record.offset >= start]
            found += [record.value for record in records]
            start = records[-1].offset + 1
        return found

    def close(self) -> None:
        self.api.close()
        self.kafka.close()
        self.control.close()


@pytest.fixture(scope="module")
def house():
    with Broker(durability="os", monitor_interval_ms=3_600_000) as broker:
        house = House(broker)
        yield house
        house.close()


@pytest.fixture
def archive(house, tmp_path, monkeypatch):
    """Return a function that archives a topic in this process and counts each effect as a step."""
    for module in (archive_job, probe, restore_job):
        monkeypatch.setattr(module, "run_tasks", in_process)
    monkeypatch.setattr(archive_job, "scanned", scanned_in_process)
    monkeypatch.setattr(probe, "is_embedded", lambda _spark: False)
    for module in (archive_job, job_labels):
        monkeypatch.setattr(module, "labelled", unlabelled)

    def run(topic, steps):
        storage = SteppingStorage(tmp_path / topic, steps)
        for module in (bundle_task, probe, restore_job):
            monkeypatch.setattr(module, "open_storage", lambda _: storage)
        api = SteppingApi(house.where, steps)
        try:
            return create_archive(
                None, api, storage, ArchiveRequest(topic=topic, bundle_records=BUNDLE)
            )
        finally:
            api.close()

    return run


def topic_archives(tmp_path, topic):
    """Return every archive of the topic name, with or without a manifest."""
    place = tmp_path / topic
    homes = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [TopicArchive(open_storage(str(place)), home) for home in homes]


def archived_values(topic_archive):
    """Return the values in the bundles, read from the files alone."""
    found = []
    for entry in topic_archive.entries():
        with topic_archive.open(entry.bundle, entry.sha256) as file:
            tp = TopicPartition(entry.topic, entry.partition)
            data = b"".join(read_batches(io.BytesIO(file.read()), tp, entry.span))
        found += [record.value for record in decode_committed(data)]
    return found


def words(word, records=RECORDS):
    return [b"%s %d" % (word, i) for i in range(records)]


def expect_sound(house, tmp_path, topic, word):
    """The archive verifies at any time, and RECLAIM has removed only archived records."""
    for topic_archive in topic_archives(tmp_path, topic):
        assert topic_archive.verify()[1] == []
    with suppress(UnknownTopic):
        house.control.reclaim(topic)
        home = topic_archive_name(topic, house.api.archive(topic).id)
        mine = [
            topic_archive
            for topic_archive in topic_archives(tmp_path, topic)
            if topic_archive.home == home
        ]
        held = archived_values(mine[0]) if mine else []
        left = house.values(topic)
        assert held + left == words(word) or left == words(word)


def expect_whole(house, tmp_path, topic, word):
    """After the next run, every record is in one bundle, verified and reclaimed."""
    state = house.api.archive(topic)
    (part,) = state.partitions
    assert (part.archived_end, part.verified_end) == (RECORDS, RECORDS)
    (topic_archive,) = [
        topic_archive
        for topic_archive in topic_archives(tmp_path, topic)
        if topic_archive.home == topic_archive_name(topic, state.id)
    ]
    spans = [entry.span for entry in topic_archive.entries()]
    assert all(before.end == after.start for before, after in pairwise(spans))
    assert archived_values(topic_archive) == words(word)
    house.control.reclaim(topic)
    assert house.values(topic) == []
    names = {
        path.name for path in (tmp_path / topic / topic_archive.home).rglob("*") if path.is_file()
    }
    wanted = {entry.bundle.rpartition("/")[2] for entry in topic_archive.entries()}
    assert names == wanted | {"manifest.jsonl", "manifest.jsonl.lock"}


@pytest.fixture
def effects(house, archive, tmp_path):
    """Return the names of all effects of an undisturbed run."""
    steps, topic = Steps(), house.topic()
    assert [entry.records for entry in archive(topic, steps)] == [16, 14]
    expect_whole(house, tmp_path, topic, b"old")
    kinds = {name.partition(" ")[0] for name in steps.names}
    assert kinds == {"put", "move", "remove", "sweep", "POST"}
    return steps.names


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_archive_killed_before_any_effect_is_finished_by_the_next_run(
    house, archive, effects, tmp_path, outcome
):
    """The next run succeeds unless the topic was deleted before it."""
    for after in range(len(effects)):
        topic = house.topic()
        steps = Steps(after)
        with pytest.raises(Killed):
            archive(topic, steps)
        expect_sound(house, tmp_path, topic, b"old")
        house.suffer(topic, outcome)
        word = b"new" if outcome == "created again" else b"old"
        expect_sound(house, tmp_path, topic, word)
        if outcome == "deleted":
            with pytest.raises(UnknownTopic):
                archive(topic, Steps())
        else:
            archive(topic, Steps())
            expect_whole(house, tmp_path, topic, word)
        expect_sound(house, tmp_path, topic, word)


@pytest.mark.parametrize("outcome", OUTCOMES[1:])
def test_a_topic_that_goes_while_it_is_archived_leaves_nothing_unproven(
    house, archive, effects, tmp_path, outcome
):
    """The run fails, and no bundle of the old topic counts for the new one."""
    for at in range(len(effects)):
        topic = house.topic()
        steps = Steps(at={at: lambda topic=topic: house.suffer(topic, outcome)})
        with pytest.raises((StaleManifest, UnknownTopic)):
            archive(topic, steps)
        assert len(steps.names) > at, "the topic went"
        expect_sound(house, tmp_path, topic, b"new")
        if outcome == "created again":
            archive(topic, Steps())
            expect_whole(house, tmp_path, topic, b"new")


@pytest.mark.parametrize("losing", ["every task", "one task"])
def test_a_task_whose_disk_is_its_own_after_all_is_found_by_the_driver(
    house, archive, tmp_path, monkeypatch, losing
):
    """A task that loses the shared mount after the probe makes the run fail."""
    topic, own = house.topic(), open_storage(str(tmp_path / "own"))
    shared = open_storage(str(tmp_path / topic))
    tasks = count()

    def opened(_):
        is_lost = losing == "every task" or next(tasks) == 1
        return own if is_lost else shared

    run_tasks = archive_job.run_tasks

    def run(spark, work, items, watch=None, **_):
        with monkeypatch.context() as lost:
            lost.setattr(bundle_task, "open_storage", opened)
            return run_tasks(spark, work, items, watch)

    with monkeypatch.context() as cluster:
        cluster.setattr(archive_job, "run_tasks", run)
        with pytest.raises(UnavailableError, match=r"is not shared: .* give --dest"):
            archive(topic, Steps())
    assert own.names() != [], "it wrote, elsewhere"
    assert [topic_archive.entries() for topic_archive in topic_archives(tmp_path, topic)] == [[]]
    assert house.api.archive(topic).partitions[0].bundles == ()
    assert house.control.reclaim(topic) == 0
    archive(topic, Steps())
    expect_whole(house, tmp_path, topic, b"old")


# --- restore ----------------------------------------------------------------------------------


@pytest.fixture
def kept(house, archive, tmp_path):
    """Create an archive that contains a committed offset."""
    topic = house.topic()
    house.kafka.commit("g", {TopicPartition(topic, 0): 12})
    archive(topic, Steps())
    (topic_archive,) = topic_archives(tmp_path, topic)
    return topic_archive


@pytest.fixture
def restore(house, archive, kept, monkeypatch):
    """Return a function that restores the archive and counts each effect as a step."""
    create_topic = KafkaClient.create_topic

    def run(to, steps):
        def create(self, *arguments):
            steps.step("create topic")
            return create_topic(self, *arguments)

        api = SteppingApi(house.where, steps)
        with monkeypatch.context() as stepping:
            stepping.setattr(KafkaClient, "create_topic", create)
            try:
                return restore_archive(None, api, kept, to=to, at_ms=None)
            finally:
                api.close()

    return run


def expect_restored(house, topic):
    assert house.values(topic) == words(b"old")
    moved = {each.partition: each.offset for each in house.kafka.committed("g")}
    assert moved[TopicPartition(topic, 0)] == 12


@pytest.mark.parametrize("outcome", ["kept", "deleted", "created again, empty"])
def test_a_restore_killed_before_any_effect_is_finished_by_the_next_run(house, restore, outcome):
    """The next run restores every record once and in order, and the committed offset."""
    steps = Steps()
    assert restore(f"whole-{outcome[:7]}", steps).records == RECORDS
    expect_restored(house, f"whole-{outcome[:7]}")
    for after in range(len(steps.names)):
        topic = f"back-{after}-{outcome[:7].strip(',')}-{len(outcome)}"
        with pytest.raises(Killed):
            restore(topic, Steps(after))
        if outcome != "kept":
            with suppress(UnknownTopic):
                house.kafka.delete_topic(topic)
        if outcome == "created again, empty":
            house.kafka.create_topic(topic, 1, {"retention.ms": "-1"})
        assert restore(topic, Steps()).records == RECORDS
        expect_restored(house, topic)
        assert restore(topic, Steps()).records == RECORDS
        expect_restored(house, topic)


def test_a_topic_deleted_while_it_is_restored_is_no_success(house, restore):
    """A restore fails if its topic is deleted meanwhile, and a later restore succeeds."""
    steps = Steps()
    restore("whole", steps)
    for at in range(1, len(steps.names)):
        topic = f"gone-{at}"
        with pytest.raises(CordwoodError):
            restore(topic, Steps(at={at: lambda topic=topic: house.kafka.delete_topic(topic)}))
        restore(topic, Steps())
        expect_restored(house, topic)
