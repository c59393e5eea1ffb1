"""``cordwood bench`` on its own broker and on a running one."""

import json
import os
import subprocess
import sys

import pytest

from cordwood.client.kafka import LATEST, KafkaClient
from cordwood.lab.loadtest import Load, batches, librdkafka
from cordwood.model import Codec, TopicPartition
from cordwood.testing import Broker

SHAPE = [
    *("workload", "client", "records", "records_per_s", "mb_per_s"),
    *("p50_ms", "p99_ms", "p99.9_ms"),
]


def bench(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "cordwood", "bench", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


def test_all_workloads_are_measured_and_nothing_is_left(tmp_path):
    """Every workload reports a rate, latencies where they apply, and all data is deleted."""
    done = bench("-n", "3001", "-c", "2", "--format", "json", "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert all(list(row) == SHAPE and row["records_per_s"] > 0 for row in rows)
    waits = {(row["workload"], row["client"]): row["p99_ms"] for row in rows}
    clients = ["cordwood", *(["librdkafka"] if librdkafka.is_installed() else [])]
    for client in clients:
        assert waits["produce", client] > 0
        assert waits["consume", client] is None
    assert waits["latency to ack", "cordwood"] > 0
    assert waits["latency to consumer", "cordwood"] > 0
    assert ("lines", "plain socket") in waits
    assert "durability=fsync" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broker_in_use_keeps_its_topics_and_gets_no_lines():
    """``bench`` deletes its own topics on a running broker; it sends lines only with ``--yes``."""
    with Broker() as broker, KafkaClient(broker.kafka) as client:
        client.create_topic("mine", 1, {})
        done = bench("--broker", broker.kafka, "-n", "100", "--format", "json")
        assert done.returncode == 0, done.stderr
        assert {row["workload"] for row in json.loads(done.stdout)} == {
            *("produce", "consume", "latency to ack", "latency to consumer")
        }
        assert bench("lines", "--broker", broker.kafka, "-n", "100").returncode == 2
        assert {topic.name for topic in client.topics()} == {"mine"}
        assert bench("lines", "--broker", broker.kafka, "-n", "100", "--yes").returncode == 0
        assert client.offset(TopicPartition("append", 0), LATEST) == 100


def test_the_environment_does_not_choose_the_broker():
    """``bench`` ignores CORDWOOD_BROKER, so only a flag can direct load to a broker."""
    done = bench("latency", "-n", "1", CORDWOOD_BROKER="127.0.0.1:1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("client", [batches, librdkafka])
def test_what_was_measured_was_written_and_read(client, acks):
    """Every counted record is in the log of its client's partition and is read back."""
    load = Load(records=5003, size_bytes=50, acks=acks, codec=Codec.LZ4, clients=3)
    with Broker() as broker, KafkaClient(broker.kafka) as asking:
        asking.create_topic("t", load.clients, {})
        counted = []
        made = client.produce(broker.kafka, "t", load, counted.append)
        ends = [asking.offset(tp, LATEST) for tp in asking.partitions("t")]
        assert (ends, sum(counted)) == (load.shares(), load.records)
        assert bool(made.waits_s) == bool(acks)
        counted.clear()
        client.consume(broker.kafka, "t", load, counted.append)
        assert sum(counted) == load.records
