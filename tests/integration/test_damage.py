"""Effects of one flipped byte in a sealed segment on clients, commands, health and scrubbing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from typer.testing import CliRunner

from cordwood.cli.app import app
from cordwood.errors import CorruptionError
from cordwood.testing import Broker
from support.lines import ask, http_get, until

RECORDS = 10
DAMAGED = 4  # the offset whose batch is changed


@pytest.fixture
def broker(tmp_path: Path):
    """Topic t: one sealed segment of ten batches, one of them damaged, and an active segment."""
    settings = {"durability": "os", "scrub_bytes_per_second": 0}
    with Broker(tmp_path / "data", **settings) as running:
        for n in range(RECORDS):
            assert ask(running.control, f"PUT t v{n}") == b"OK"
        assert ask(running.control, "CUT t") == b"OK 1"
        assert ask(running.control, "PUT t last") == b"OK"
        log = running.data / "t-0" / f"{0:020}.log"
        data = bytearray(log.read_bytes())
        data[data.index(b"v%d" % DAMAGED)] ^= 1
        log.write_bytes(data)
        yield running


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def health(broker: Broker) -> tuple[int, str]:
    status, body = http_get(broker.http, "/readyz")
    return status, json.loads(body)["damaged_partitions"].get("t-0", "")


def consume(consumer: Consumer, count: int) -> tuple[list[bytes], list[KafkaError]]:
    """Read up to ``count`` records and stop at the first error."""
    values, errors = [], []
    while len(values) < count and not errors:
        message = consumer.poll(30)
        assert message is not None, "neither a record nor an error came"
        if message.error():
            errors.append(message.error())
        else:
            values.append(message.value())
    return values, errors


def test_a_consumer_gets_what_is_sound_an_error_and_the_rest_after_a_seek(broker: Broker):
    """The error is CORRUPT_MESSAGE, as librdkafka would retry KAFKA_STORAGE_ERROR forever."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    values, errors = consume(consumer, RECORDS)
    assert values == [b"v%d" % n for n in range(DAMAGED)]
    assert [error.code() for error in errors] == [2]
    consumer.seek(TopicPartition("t", 0, DAMAGED + 1))
    rest: list[bytes] = []
    while len(rest) < RECORDS - DAMAGED:  # errors fetched before the seek may still arrive
        rest += consume(consumer, RECORDS - DAMAGED - len(rest))[0]
    assert rest == [*(b"v%d" % n for n in range(DAMAGED + 1, RECORDS)), b"last"]
    consumer.close()
    status, report = health(broker)
    assert (status, f"offsets {DAMAGED} to {DAMAGED}" in report) == (503, True)
    _, metrics = http_get(broker.http, "/metrics")
    assert 'cordwood_damaged_ranges{partition="0",topic="t"} 1.0' in metrics
    assert "cordwood_damage_found_total 1.0" in metrics


def test_line_readers_get_the_position_to_continue_from(broker: Broker):
    """GET fails at the damaged offset and names the next one; RESET skips the damage."""
    got = [ask(broker.control, "GET t AS r") for _ in range(DAMAGED + 1)]
    assert got[:DAMAGED] == [b"OK v%d" % n for n in range(DAMAGED)]
    assert got[DAMAGED].startswith(b"ERR DAMAGED_RECORDS ")
    assert b"go on from offset 5 (seq 6)" in got[DAMAGED]
    assert ask(broker.control, f"RESET t r {DAMAGED + 2}") == b"OK"
    assert ask(broker.control, "GET t AS r") == b"OK v5"


def test_the_scrub_finds_it_before_a_reader_does(broker: Broker):
    """Scrub exits with code 5 and prints the offsets; health and commands then report them."""
    assert health(broker) == (200, "")
    answer = run("segment", "scrub", "t", "--quiet", "--format", "json", "--broker", broker.kafka)
    (row,) = json.loads(answer.stdout)
    assert (answer.exit_code, row["first_offset"], row["last_offset"]) == (5, DAMAGED, DAMAGED)
    assert health(broker)[0] == 503
    listed = run("segment", "ls", "t", "--data", str(broker.data), "--format", "json")
    rows = json.loads(listed.stdout)
    assert [row["damaged_ranges"] for row in rows] == [1, None]
    assert rows[0]["scrubbed"] is not None
    described = run("topic", "describe", "t", "--broker", broker.kafka)
    assert f"t-0 damaged: offsets {DAMAGED} to {DAMAGED}" in described.output
    checked = run("check", "--broker", broker.kafka)
    assert (checked.exit_code, "damaged_partitions" in checked.output) == (5, True)


def test_damage_is_reported_after_a_restart_until_the_segment_is_repaired(broker: Broker):
    """After a restart, damage is still reported; once the segment is intact, it is not."""
    run("segment", "scrub", "--quiet", "--broker", broker.kafka)
    broker.stop()
    broker.start()
    until(lambda: health(broker)[0] == 503, "the damage is told again")
    broker.stop()
    log = broker.data / "t-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes().replace(b"w%d" % DAMAGED, b"v%d" % DAMAGED))
    broker.start()
    until(lambda: health(broker)[0] == 200, "it is whole")
    assert run("segment", "scrub", "--quiet", "--broker", broker.kafka).exit_code == 0


def test_printing_a_damaged_topic_is_one_sentence(broker: Broker):
    """``cat`` fails with CorruptionError and exit code 5, from files and from a broker."""
    for where in (("--data", str(broker.data)), ("--broker", broker.kafka)):
        report = run("cat", "t", *where)
        assert isinstance(report.exception, CorruptionError), report.exception
        assert report.exception.exit_code == 5
