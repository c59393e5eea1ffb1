"""Deliveries to a real broker: stage records, request the delivery, and read the result.

``Snapshots`` copies the data directory before every durable step of the code under test. Each copy
is what ``kill -9`` at that step leaves, with the page cache intact.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from contextlib import contextmanager

from cordwood.batch.header import parse_headers
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.broker.jobs.delivery_request import Delivery
from cordwood.decide.delivery import Part
from cordwood.log.files.disk import Files
from cordwood.log.staging.area import JobFiles, StagingArea
from cordwood.metadata.keys import ReaderPartition
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import Record, TopicPartition
from support.stores import headers_of, open_store

READER = ReaderPartition("route", "in", 0)
PARTS = (Part("a", 0, "x"), Part("b", 0, "y"), Part("a", 0, "z"))


def ensure(broker, *topics):
    for topic in topics:
        broker.run(lambda topic=topic: _ensure(broker.service.broker, topic))


async def _ensure(broker, name):
    """Create a topic; the source gets records, because cursors must lie within the log."""
    topic = await broker.topics.ensure(name, explicit=True)
    if name == READER.topic:
        records = [Record(offset, 1, b"k", b"v") for offset in range(100)]
        data = bytearray(encode_batch(records))
        await broker.produce.submit(topic.partition(0), data, parse_headers(data))


def topic_id(broker, topic):
    return broker.service.broker.store.topic(topic).id


def stage(broker, job, **files):
    """Write files to the job's staging directory, with one batch per word."""
    directory = broker.data / "staging" / job
    directory.mkdir(parents=True, exist_ok=True)
    for name, words in files.items():
        batches = (encode_batch([Record(0, 1, b"k", word.encode())]) for word in words.split())
        (directory / name).write_bytes(b"".join(batches))


def a_delivery(batch=0, *, query="q", job="job", start=None, end=10, parts=PARTS, **more):
    starts = {} if start is None else {READER: start}
    return Delivery(query, batch, job, parts, {READER: end}, starts, **more)


def hashed(broker, delivery):
    """Add the sha256 of the staged files to the request, as the task that staged them does."""
    parts = [
        part if part.sha256 else part._replace(sha256=_sha256(broker, delivery.job, part.file))
        for part in delivery.parts
    ]
    return delivery._replace(parts=parts)


def _sha256(broker, job, name):
    path = broker.data / "staging" / job / name
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def deliver(broker, delivery):
    asked = hashed(broker, delivery)
    return broker.run(lambda: broker.service.broker.deliveries.deliver(asked))


def words(broker, topic):
    """Return the values that a reader finds, in order."""
    store = broker.service.broker.store
    if topic not in store.topics:
        return []
    partition = store.partition(TopicPartition(topic, 0))
    found, offset = [], 0
    while offset < partition.high_watermark:
        part = partition.read(offset, 1 << 20)
        position = 0
        for header in headers_of(part.data):
            found += [record.value.decode() for record in decode_batch(part.data, position)]
            position += header.size_bytes
        offset = part.next_offset
    return found


def cursor(broker):
    found = broker.service.broker.store.metadata.readers.cursor(READER)
    return found.offset if found else None


def staged(broker):
    directory = broker.data / "staging"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def change_topics(data, *, delete=(), create=()):
    """Delete and create topics while the broker is stopped."""
    store = open_store(data)
    for name in delete:
        store.delete_topic(name)
    for name in create:
        store.create_topic(name, 1)
    store.close()


class Snapshots:
    """Copies of ``data`` taken before each step, and the names of the steps."""

    STEPS = (
        (Files, "effect"),
        (SqliteStore, "txn"),
        (StagingArea, "remove"),
        (StagingArea, "sync"),
        (JobFiles, "sync"),
        (JobFiles, "sync_names"),
    )

    def __init__(self, data, directory, monkeypatch):
        self.data, self.directory = data, directory
        self.names = []
        self._patch = monkeypatch
        self._is_on = False
        self._one_at_a_time = threading.RLock()

    @contextmanager
    def taken(self):
        """Take a copy before each step that runs inside, on any thread."""
        with self._patch.context() as patch:
            for owner, name in self.STEPS:
                patch.setattr(owner, name, self._watched(owner, name))
            self._is_on = True
            try:
                yield self
            finally:
                self._is_on = False

    def _watched(self, owner, name):
        act = getattr(owner, name)

        def step(*arguments, **options):
            if not self._is_on:
                return act(*arguments, **options)
            with self._one_at_a_time:  # fsyncs run in parallel
                shutil.copytree(self.data, self.directory / str(len(self.names)))
                self.names.append(f"{owner.__name__}.{name} {arguments[1:2]}")
                return act(*arguments, **options)

        return step

    def __iter__(self):
        for number, name in enumerate(self.names):
            yield number, name, self.directory / str(number)
