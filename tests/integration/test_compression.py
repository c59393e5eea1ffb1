"""Sealed segments are compressed under clients that read and write, and nobody notices."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from cordwood.cli.app import app
from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.errors import PolicyViolation
from cordwood.testing import Broker
from support.lines import ask, http_get, until

WAIT_S = 30
LINES = 300
LINE = "2026-11-18 host=%d svc=orders user=%d a line of about a hundred bytes with words and words"


@pytest.fixture
def broker(tmp_path: Path):
    """A broker that compresses on demand only."""
    with Broker(tmp_path / "data", durability="os", compression_bytes_per_second=0) as running:
        yield running


def create(broker: Broker, topic: str, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with KafkaClient(broker.kafka) as client:
        client.create_topic(topic, 1, {"compression.type": "zstd", **named})


def put_lines(broker: Broker, topic: str, count: int = LINES) -> None:
    """Append lines one by one, so that each has a batch of its own."""
    for at in range(count):
        assert ask(broker.control, f"PUT {topic} {LINE % (at % 7, at)}") == b"OK"


def cut(broker: Broker, topic: str) -> None:
    with Client(broker.control) as client:
        client.cut(topic)


def run(broker: Broker, *arguments: str):
    done = CliRunner().invoke(app, [*arguments], env={"CORDWOOD_BROKER": broker.kafka})
    assert done.exit_code == 0, done.output
    return done


def rows(done) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(done.stdout)))


def compress(broker: Broker, topic: str) -> list[dict[str, str]]:
    return rows(run(broker, "segment", "compress", topic, "--format", "csv"))


def take(consumer: Consumer, count: int) -> list[tuple[int, bytes]]:
    found = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"only {len(found)} of {count} records came"
        assert message.error() is None, message.error()
        found.append((message.offset(), message.value()))
    return found


def metric(broker: Broker, name: str) -> float:
    for line in http_get(broker.http, "/metrics")[1].splitlines():
        if line.startswith(name):
            return float(line.split()[-1])
    return 0.0


def test_readers_go_on_where_they_were_when_a_segment_is_compressed(broker: Broker):
    """A consumer, a subscriber and lookups by time continue inside a merged batch."""
    create(broker, "t")
    put_lines(broker, "t")
    cut(broker, "t")
    expected = [(at, (LINE % (at % 7, at)).encode()) for at in range(LINES)]
    settings = {
        "bootstrap.servers": broker.kafka, "group.id": "g", "fetch.message.max.bytes": 5000,
        "queued.min.messages": 10,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found = take(consumer, 40)
    (time_ms,) = _times(broker, 57)
    (row,) = compress(broker, "t")
    assert row["status"] == "compressed"
    assert int(row["bytes"]) < int(row["bytes_before"]) / 2
    found += take(consumer, LINES - 40)
    assert found == expected
    again = Consumer(settings)
    again.assign([TopicPartition("t", 0, 123)])
    assert take(again, LINES - 123) == expected[123:]
    assert _times(broker, 57) == [time_ms]
    (at,) = again.offsets_for_times([TopicPartition("t", 0, time_ms)], timeout=WAIT_S)
    assert at.offset <= 57
    with Client(broker.control) as client, client.subscribe("t", from_seq=200) as lines:
        assert [next(lines).payload for _ in range(5)] == [value for _, value in expected[199:204]]
    consumer.close()
    again.close()


def _times(broker: Broker, offset: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "times"})
    consumer.assign([TopicPartition("t", 0, offset)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    return [message.timestamp()[1]]


def test_a_long_poll_that_waits_during_the_swap_gets_the_next_record(broker: Broker):
    """A consumer at the end of the log is not disturbed."""
    create(broker, "t")
    put_lines(broker, "t", 50)
    cut(broker, "t")
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g",
                         "fetch.wait.max.ms": 20_000})  # fmt: skip
    consumer.assign([TopicPartition("t", 0, 49)])
    assert take(consumer, 1)[0][0] == 49
    assert compress(broker, "t")[0]["status"] == "compressed"
    assert ask(broker.control, "PUT t next") == b"OK"
    assert take(consumer, 1) == [(50, b"next")]
    consumer.close()


def test_producers_and_transactions_continue_on_a_compressed_log(tmp_path: Path):
    """Sequences and aborted transactions are as before, also after a restart."""
    data = tmp_path / "data"
    with Broker(data, durability="os", compression_bytes_per_second=0) as broker:
        create(broker, "t")
        for name, is_committed in (("a", True), ("b", False)):
            producer = Producer({
                "bootstrap.servers": broker.kafka, "transactional.id": name, "linger.ms": 0
            })  # fmt: skip
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
            for at in range(30):
                producer.produce("t", f"{name}{at} words and words and words".encode() * 4)
            producer.flush(WAIT_S)
            (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
        idempotent = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
        idempotent.produce("t", b"before " * 30)
        assert idempotent.flush(WAIT_S) == 0
        cut(broker, "t")
        before = _committed(broker)
        assert compress(broker, "t")[0]["status"] == "compressed"
        assert _committed(broker) == before
        idempotent.produce("t", b"after")
        assert idempotent.flush(WAIT_S) == 0
        after = _committed(broker)
        assert [value for _, value in after[len(before) :]] == [b"after"]
        run(broker, "segment", "scrub", "t")
    with Broker(data, durability="os", compression_bytes_per_second=0) as broker:
        assert _committed(broker) == after


def _committed(broker: Broker) -> list[tuple[int, bytes]]:
    """Return everything that a ``read_committed`` consumer finds."""
    consumer = Consumer({
        "bootstrap.servers": broker.kafka, "group.id": "c", "enable.partition.eof": True,
        "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.value()))


def test_the_broker_compresses_by_itself_and_tells_so(tmp_path: Path):
    """Without a command; metrics, ``segment ls`` and ``topic describe`` show it."""
    settings = {"durability": "os", "monitor_interval_ms": 20}
    with Broker(tmp_path / "data", **settings) as broker:
        create(broker, "t", compression_delay_ms="0", compression_type="gzip")
        put_lines(broker, "t", 100)
        cut(broker, "t")
        until(lambda: metric(broker, 'cordwood_compressed_segments_total{topic="t"}') == 1,
              "the segment is compressed")  # fmt: skip
        before = metric(broker, 'cordwood_compressed_bytes_before_total{topic="t"}')
        after = metric(broker, 'cordwood_compressed_bytes_after_total{topic="t"}')
        assert 0 < after < before / 2
        listed = rows(run(broker, "segment", "ls", "t", "--data", str(broker.data),
                          "--format", "csv"))  # fmt: skip
        assert [(row["codec"], int(row["bytes"])) for row in listed] == [("gzip", after), ("", 0)]
        assert float(listed[0]["ratio"]) == round(after / before, 2)
        (described,) = rows(run(broker, "topic", "describe", "t", "--format", "csv"))
        assert int(described["saved_bytes"]) == before - after
        (row,) = compress(broker, "t")
        assert (row["status"], int(row["bytes"])) == ("compressed", after)


def test_a_dry_run_says_what_is_due_and_a_wrong_topic_what_to_do(broker: Broker):
    """``--dry-run`` changes nothing; without ``compression.type`` the error names the setting."""
    create(broker, "t")
    create(broker, "plain", compression_type="producer")
    put_lines(broker, "t", 20)
    cut(broker, "t")
    done = run(broker, "segment", "compress", "t", "--dry-run")
    assert "due" in done.stdout
    assert "1 sealed segment: " in done.stderr
    assert metric(broker, "cordwood_compressed_segments_total") == 0
    refused = CliRunner().invoke(
        app, ["segment", "compress", "plain"], env={"CORDWOOD_BROKER": broker.kafka}
    )
    assert isinstance(refused.exception, PolicyViolation)
    assert "set its compression.type first" in str(refused.exception)
