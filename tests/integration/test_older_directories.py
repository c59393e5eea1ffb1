"""This version opens, reads and writes data directories of earlier versions."""

from __future__ import annotations

import tarfile
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from cordwood.client import Client, Producer
from cordwood.testing import Broker

WRITTEN = sorted((Path(__file__).parents[1] / "corpus" / "directories").glob("*.tar.gz"))
PATIENCE_S = 30


@pytest.fixture(params=WRITTEN, ids=lambda path: path.name.removesuffix(".tar.gz"))
def data(request, tmp_path):
    """A copy of a directory that ``tests/corpus/write_directory.py`` wrote."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def read_committed(bootstrap, topic, partition=0):
    """Return key and value of every record a ``read_committed`` consumer gets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic}-{partition} does not end"
            if message.error() is None:
                found.append((message.key(), message.value()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
            else:
                raise confluent_kafka.KafkaException(message.error())
    finally:
        consumer.close()


def written(partition):
    """Return the records produced to a partition of ``plain`` before its transactions."""
    return [
        (b"k%d" % (number % 7), b"v%03d" % number + b"." * 40)
        for number in range(100)
        if number % 2 == partition
    ]


def test_every_record_of_an_older_directory_is_read(data):
    """Records are read in order, and aborted transactions stay invisible."""
    with Broker(data) as broker:
        assert read_committed(broker.kafka, "plain", 0) == [*written(0), (b"txn", b"committed")]
        assert read_committed(broker.kafka, "plain", 1) == written(1)
        keyed = read_committed(broker.kafka, "keyed")
        assert keyed == [(b"k", b"first"), (b"k", b"second"), (b"k", None)]


def test_cursors_and_settings_of_an_older_directory_are_kept(data):
    """A group's offsets, a named reader and topic settings survive the upgrade."""
    with Broker(data) as broker:
        group = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "readers"})
        where = confluent_kafka.TopicPartition("plain", 1)
        assert [each.offset for each in group.committed([where], PATIENCE_S)] == [30]
        group.close()
        with Client(broker.control) as client:
            assert "auditor" in str(client.readers("plain"))
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        resource = ConfigResource(ConfigResource.Type.TOPIC, "plain")
        (described,) = admin.describe_configs([resource]).values()
        settings = described.result(PATIENCE_S)
        assert settings["segment.bytes"].value == "1024"


def test_an_older_directory_is_written_to_and_reopened(data):
    """New records follow the old ones and are still there after a restart."""
    with Broker(data) as broker:
        with Producer(broker.ingress, name="sensor") as producer:
            producer.send_and_confirm([("temp.kitchen", b"21")])
        sender = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
        sender.produce("plain", key=b"new", value=b"record", partition=1)
        assert sender.flush(PATIENCE_S) == 0
        broker.restart()
        assert read_committed(broker.kafka, "plain", 1)[-1] == (b"new", b"record")
        lines = [value for _, value in read_committed(broker.kafka, "append")]
        assert lines == [b"20", b"18", b"21"]
