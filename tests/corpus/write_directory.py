"""Writes a small data directory as whichever version of cordwood is on the path writes it.

    PYTHONPATH=<checkout of that version>/src python tests/corpus/write_directory.py <name>

leaves ``tests/corpus/directories/<name>.tar.gz``. Only public interfaces are used, so that the
script runs on any version. ``tests/integration/test_older_directories.py`` opens what it wrote.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from cordwood.client import Client, Producer
from cordwood.testing import Broker

HERE = Path(__file__).parent


def write_directory(data: Path) -> None:
    """Two topics, a transaction of each kind, a group, a named reader, and numbered lines."""
    with Broker(data) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        plain = NewTopic("plain", 2, config={"segment.bytes": "1024", "retention.ms": "-1"})
        keyed = NewTopic("keyed", 1, config={"cleanup.policy": "compact"})
        for made in admin.create_topics([plain, keyed]).values():
            made.result(30)
        produce(broker.kafka)
        commit(broker.kafka)
        with Producer(broker.ingress, name="sensor") as producer:
            producer.send_and_confirm([("temp.kitchen", b"20"), ("temp.hall", b"18")])
        with Client(broker.control) as client:
            client.register("plain", "auditor")
            client.ack("plain", "auditor", 5)


def produce(bootstrap: str) -> None:
    """Records with keys, headers and a tombstone, in several segments and codecs."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    for number in range(100):
        producer.produce(
            "plain",
            key=b"k%d" % (number % 7),
            value=b"v%03d" % number + b"." * 40,
            headers={"n": b"%d" % number},
            partition=number % 2,
            timestamp=1_700_000_000_000 + number,
        )
        producer.flush(30)
    for value in (b"first", b"second", None):
        producer.produce("keyed", key=b"k", value=value, timestamp=1_700_000_000_000)
    producer.flush(30)
    sender = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover"})
    sender.init_transactions(30)
    for value in (b"committed", b"aborted"):
        sender.begin_transaction()
        sender.produce("plain", key=b"txn", value=value, partition=0, timestamp=1_700_000_000_500)
        sender.flush(30)
        end = sender.commit_transaction if value == b"committed" else sender.abort_transaction
        end(30)


def commit(bootstrap: str) -> None:
    """A consumer group that has read some of it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("plain", 1, 30)], asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write_directory(Path(scratch) / "data")
        target = HERE / "directories" / f"{sys.argv[1]}.tar.gz"
        with tarfile.open(target, "w:gz") as archive:
            archive.add(Path(scratch) / "data", "data")
    print(f"{target}: {target.stat().st_size} bytes")
