"""Archive and restore on Spark with a real broker: restored records and crash recovery."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from cordwood.batch.records import encode_batch, encode_marker
from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import TopicArchive, list_topic_archives
from cordwood.config import KEEP_ALL
from cordwood.decide.archive import Problem
from cordwood.errors import CorruptionError, TopicExists
from cordwood.model import Codec, Header, Record, TopicPartition
from cordwood.pipeline.archive import ArchiveRequest, create_archive, restore_archive
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.protocol.api.archive import ListBundles
from cordwood.protocol.api.compression import GetCompression, StartCompression
from cordwood.testing import Broker
from support.lines import until

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000


class CompactionHarness:
    """A broker, its API and an archive in its data directory."""

    def __init__(self, broker: Broker, spark) -> None:
        self.broker = broker
        self.spark = spark
        self.where = BrokerAddress(broker.kafka)
        self.api = BrokerApi(self.where)
        self.storage = open_storage(str(broker.data / "archive"))

    def produce(self, topic, *batches, partitions=1, config=None):
        with KafkaClient(self.broker.kafka) as client:
            if topic not in {each.name for each in client.topics()}:
                client.create_topic(topic, partitions, {"retention.ms": "-1"} | (config or {}))
            for partition, batch in batches:
                client.produce(TopicPartition(topic, partition), batch)

    def cut(self, topic):
        with Client(self.broker.control) as client:
            client.cut(topic)

    def archive(self, topic, **options):
        return create_archive(
            self.spark, self.api, self.storage, ArchiveRequest(topic=topic, **options)
        )

    def topic_archive(self, topic) -> TopicArchive:
        return list_topic_archives(self.storage, topic)[-1]

    def restore(self, topic, to, at_ms=None):
        return restore_archive(self.spark, self.api, self.topic_archive(topic), to=to, at_ms=at_ms)

    def records(self, topic, partition=0):
        from cordwood.batch.records import decode_committed

        tp = TopicPartition(topic, partition)
        found, offset = [], 0
        with KafkaClient(self.broker.kafka) as client:
            end = client.offset(tp, -1)
            while offset < end:
                data = bytes(client.fetch({tp: offset}, max_wait_ms=0)[tp].records or b"")
                found += [r for r in decode_committed(data) if r.offset >= offset]
                offset = found[-1].offset + 1
        return found


@pytest.fixture
def harness(spark):
    with Broker(durability="os", monitor_interval_ms=3_600_000) as broker:
        harness = CompactionHarness(broker, spark)
        yield harness
        harness.api.close()


def a_batch(first, count, **options):
    return encode_batch(
        [
            Record(
                offset,
                START_MS + first + offset,
                None if offset % 7 == 3 else b"k%d" % (first + offset),
                None if offset % 5 == 4 else b"value %d \n|\\" % (first + offset),
                (Header("h", b"%d" % offset), Header("none", None)) if offset % 2 else (),
            )
            for offset in range(count)
        ],
        **options,
    )


def content(records):
    return [(r.timestamp_ms, r.key, r.value, r.headers) for r in records]


def test_records_and_cursors_come_back_as_they_were(harness):
    """Restore returns every record unchanged and the group's cursors; repeating it adds nothing."""
    harness.produce(
        "t",
        *[(p, a_batch(100 * i, 40, codec=codec)) for p in (0, 1) for i, codec in enumerate(Codec)],
        partitions=2,
    )
    with KafkaClient(harness.broker.kafka) as client:
        client.commit("g", {TopicPartition("t", 0): 123, TopicPartition("t", 1): 7})
    harness.cut("t")
    entries = harness.archive("t", bundle_records=64, parquet=True)
    assert [e.records for e in entries if e.partition == 0] == [64, 64, 64, 8]
    assert harness.topic_archive("t").verify()[1] == []
    assert harness.archive("t", bundle_records=64) == []

    restored = harness.restore("t", "back")
    assert restored.records == 400
    for partition in (0, 1):
        assert content(harness.records("back", partition)) == content(
            harness.records("t", partition)
        )
    with KafkaClient(harness.broker.kafka) as client:
        moved = {
            each.partition.partition: each.offset
            for each in client.committed("g")
            if each.partition.topic == "back"
        }
    assert moved == {0: 123, 1: 7}

    assert harness.restore("t", "back").records == 400
    assert len(harness.records("back")) == 200, "run twice, nothing is twice"
    with pytest.raises(TopicExists, match="--to"):
        harness.restore("t", "t")
    until = harness.restore("t", "past", at_ms=START_MS + 110)
    assert until.records == 2 * (40 + 11)
    assert max(r.timestamp_ms for r in harness.records("past")) == START_MS + 110


def test_an_object_store_is_as_good_as_a_directory(harness, tmp_path):
    """Archive, verify and restore work with an object store; a missing bundle is found."""
    pytest.importorskip("obstore")
    harness.storage = open_storage(f"file://{tmp_path}/bucket")
    harness.produce("t", (0, a_batch(0, 100)))
    harness.cut("t")
    entries = harness.archive("t", bundle_records=40, parquet=True)
    assert [e.records for e in entries] == [40, 40, 20]
    assert harness.topic_archive("t").verify()[1] == []
    assert harness.restore("t", "back").records == 100
    assert content(harness.records("back")) == content(harness.records("t"))
    harness.storage.remove(f"{harness.topic_archive('t').home}/{entries[1].bundle}")
    assert [f.problem for f in harness.topic_archive("t").verify()[1]] == [Problem.MISSING]


def test_what_a_transaction_gave_up_does_not_come_back(harness):
    """Restore omits aborted records and markers; it keeps committed and non-transactional ones."""

    def txn(first, count, commit):
        options = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
        return a_batch(first, count, base_sequence=first, **options), commit

    harness.produce("t", (0, a_batch(0, 3)))
    inside = harness.broker.service.broker
    partition = inside.store.topic("t").partition(0)
    from cordwood.batch.header import parse_headers

    def append(data):
        data = bytearray(data)
        partition.append(data, parse_headers(data))
        partition.sync()
        partition.publish()

    def write():
        for batch, commit in (txn(0, 4, True), txn(4, 4, False), txn(8, 4, True)):
            append(batch)
            append(
                encode_marker(
                    commit,
                    producer_id=7,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp_ms=START_MS,
                )
            )

    async def on_writer():
        return await inside.topics.on_writer(write)

    harness.broker.run(on_writer)
    harness.cut("t")
    harness.archive("t", bundle_records=6)
    restored = harness.restore("t", "back")
    kept = content(harness.records("back"))
    assert restored.records == len(kept) == 3 + 4 + 4
    assert [key for _, key, _, _ in kept][3:7] == [b"k0", b"k1", b"k2", None]


@pytest.mark.parametrize("step", ["manifest", "place", "tell"])
def test_a_run_that_dies_is_finished_by_the_next(harness, step, monkeypatch):
    """After a crash, every bundle has a manifest entry and no record is archived twice."""
    harness.produce("t", (0, a_batch(0, 50)))
    harness.cut("t")

    class Died(Exception):
        pass

    def die(*_args, **_kwargs):
        raise Died

    target, name = {
        "manifest": (TopicArchive, "write_manifest"),
        "place": (TopicArchive, "place"),
        "tell": (BrokerApi, "record_bundle"),
    }[step]
    with monkeypatch.context() as broken:
        broken.setattr(target, name, die)
        with pytest.raises(Died):
            harness.archive("t", bundle_records=20)
    home = f"t.{harness.api.archive('t').id[:8]}"
    topic_archive = TopicArchive(harness.storage, home)
    entries, findings = topic_archive.verify()
    assert findings == []
    placed = [
        n for n in harness.storage.names(home) if n.endswith(".tar.gz") and "incoming" not in n
    ]
    assert {n.removeprefix(f"{home}/") for n in placed} <= {entry.bundle for entry in entries}

    finished = harness.archive("t", bundle_records=20)
    assert [(e.first_seq, e.last_seq) for e in finished] == [(1, 20), (21, 40), (41, 50)]
    assert topic_archive.verify()[1] == []
    assert harness.api.archive("t").partitions[0].archived_end == 50
    assert harness.archive("t") == []


def test_archiving_goes_on_where_it_stopped_and_the_chain_with_it(harness):
    """A later run continues after the last bundle; a truncated manifest is an error."""
    harness.produce("t", (0, a_batch(0, 30)))
    harness.cut("t")
    first = harness.archive("t", through_seq=12)
    second = harness.archive("t")
    assert [(e.first_seq, e.last_seq) for e in [*first, *second]] == [(1, 12), (13, 30)]
    assert second[0].previous == first[0].link
    topic_archive = harness.topic_archive("t")
    topic_archive.write_manifest(first)
    harness.produce("t", (0, a_batch(30, 5)))
    harness.cut("t")
    with pytest.raises(CorruptionError, match="the broker has recorded it as archived"):
        harness.archive("t")


def test_a_bundle_is_read_by_tar_and_json_alone(harness):
    """A bundle is a tar file with a JSON description, a segment and its records as text lines."""
    harness.produce("t", (0, a_batch(0, 10)))
    harness.cut("t")
    (entry,) = harness.archive("t", parquet=True)
    topic_archive = harness.topic_archive("t")
    with topic_archive.open(entry.bundle, entry.sha256) as bundle:
        data = bundle.read()
    assert hashlib.sha256(data).hexdigest() == entry.sha256
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        about = json.load(tar.extractfile("bundle.json"))
        lines = tar.extractfile(names[2]).read().splitlines()
    assert names == ["bundle.json", f"t-0/{0:020d}.log", f"t-0/{0:020d}.txt"]
    assert (about["first_seq"], about["last_seq"], about["records"]) == (1, 10, 10)
    assert [line.split(b"|")[0] for line in lines] == [b"%d" % seq for seq in range(1, 11)]
    import pyarrow.parquet as pq

    with topic_archive.open(
        entry.bundle.replace(".tar.gz", ".parquet"), entry.parquet_sha256
    ) as file:
        table = pq.read_table(io.BytesIO(file.read()))
    assert table.column("offset").to_pylist() == list(range(10))


def test_reclaim_waits_for_the_archive(harness):
    """With archive.required, RECLAIM keeps a consumed segment until it is archived."""
    harness.produce(
        "t",
        (0, a_batch(0, 10)),
        config={"cleanup.policy": "consume", "archive.required": "true"},
    )
    with Client(harness.broker.control) as client:
        client.register("t", "r")
        client.ack("t", "r", 10)
        client.cut("t")
        assert client.reclaim("t") == 0
        (entry,) = harness.archive("t")
        assert client.reclaim("t") == 1
        status = client.status(3, "t")
    assert status.word == "ARCHIVED"
    assert status.bundle.endswith(entry.bundle)


def test_a_restore_into_a_topic_that_was_deleted_meanwhile_delivers_again(harness):
    """Restore tracks deliveries by topic id, so a recreated topic receives all records again."""
    harness.produce("t", (0, a_batch(0, 30)))
    harness.cut("t")
    harness.archive("t")
    assert harness.restore("t", "back").records == 30
    assert len(harness.records("back")) == 30
    with KafkaClient(harness.broker.kafka) as client:
        client.delete_topic("back")
    assert harness.restore("t", "back").records == 30
    assert len(harness.records("back")) == 30
    assert harness.restore("t", "back").records == 30  # a repeat into the same topic adds nothing
    assert len(harness.records("back")) == 30


def test_a_flipped_byte_stops_a_restore(harness):
    """Restore fails if a bundle's checksum does not match."""
    harness.produce("t", (0, a_batch(0, 10)))
    harness.cut("t")
    (entry,) = harness.archive("t")
    topic_archive = harness.topic_archive("t")
    with topic_archive.open(entry.bundle, entry.sha256) as bundle:
        data = bytearray(bundle.read())
    data[len(data) // 2] ^= 4
    harness.storage.put(f"{topic_archive.home}/{entry.bundle}", io.BytesIO(bytes(data)))
    assert [f.problem for f in topic_archive.verify()[1]] == [Problem.CHANGED]
    with pytest.raises(CorruptionError, match="changed"):
        harness.restore("t", "back")


def test_the_default_bundle_is_by_bytes(harness):
    """Without an explicit limit, a default size in bytes splits the bundles."""
    harness.produce("t", *[(0, a_batch(10 * i, 10)) for i in range(10)])
    harness.cut("t")
    assert ArchiveRequest(topic="t").bundle_bytes == KEEP_ALL
    assert len(harness.archive("t", default_bytes=2000)) > 1


def test_a_log_that_is_compressed_between_two_archives_stays_whole(harness):
    """Compression changes no record: bundles, a scan and a restore agree before and after it."""
    config = {"compression.type": "gzip", "archive.required": "true", "retention.ms": "-1"}
    harness.produce("t", *[(0, a_batch(at, 2)) for at in range(60)], config=config)
    harness.cut("t")
    harness.archive("t", bundle_records=50)
    harness.produce("t", *[(0, a_batch(at, 2)) for at in range(60, 90)])
    harness.cut("t")
    before = harness.records("t")
    harness.api.call(StartCompression("t"))
    until(lambda: not harness.api.call(GetCompression()).running, "the topic is compressed")
    rows = harness.api.call(GetCompression()).segments
    assert [row.status for row in rows] == ["compressed", "compressed"]
    harness.archive("t", bundle_records=50)
    (bundles,) = harness.api.call(ListBundles("t")).partitions
    assert (bundles.archived_end, bundles.verified_end) == (180, 180)
    assert harness.topic_archive("t").verify()[1] == []
    assert harness.records("t") == before
    frame = harness.spark.read.format("cordwood").option("subscribe", "t")
    frame = frame.option("kafka.bootstrap.servers", harness.broker.kafka).load()
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(180))
    harness.restore("t", "back")
    assert content(harness.records("back")) == content(before)
