"""A compacted topic rejects records without a key, and keeps those it already has.

Compaction keeps the newest record of each key, so it cannot judge a record without one. Every
append passes one check, which rejects such a record before it is acknowledged.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.errors import InvalidRecord
from cordwood.log.write.commit import Append, Committer
from cordwood.log.write.partition import Appended
from cordwood.model import Record
from cordwood.pipeline.compact.job import run_due
from cordwood.testing import Broker
from support.compaction import in_process
from support.http import JsonClient
from support.lines import Wire, ask, high_watermark, read_topic, until


@pytest.fixture
def broker():
    """A broker with a compacted topic."""
    with Broker(durability="os", pipeline="off") as running:
        assert ask(running.control, "REGISTER kept") == b"OK"
        assert ask(running.control, "CONFIGURE kept cleanup.policy=compact") == b"OK"
        yield running


def compact(broker: Broker, topic: str) -> None:
    (outcome,) = run_due(JsonClient(broker.http), in_process, topic=topic, demand=True)
    assert outcome.error == ""


def supersede(broker: Broker, topic: str) -> None:
    """Write two records of one key, so that compaction has a record to remove."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for value in (b"old", b"new"):
        producer.produce(topic, value, b"k")
    assert producer.flush(30) == 0


def payloads(broker: Broker, topic: str) -> list[bytes | None]:
    return [line.payload for line in read_topic(broker.control, topic)]


def test_put_is_refused_and_says_what_to_do(broker):
    """PUT to a compacted topic stores nothing and replies with an error and its remedy."""
    reply = ask(broker.control, "PUT kept lost")
    assert reply.startswith(b"ERR INVALID_RECORD topic kept is compacted and requires a key")
    assert b"produce -K" in reply
    assert high_watermark(broker.control, "kept") == 0
    with Wire(broker.control) as wire:
        assert wire.frame(b"PUT kept lost").read_frame().startswith(b"ERR INVALID_RECORD ")


def test_cordwood_produce_without_a_key_is_refused_in_one_sentence(broker):
    """``produce`` without a key fails with a one-line error; with a key it succeeds."""

    def produce(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cordwood", "produce", "kept", *flags],
            input="a:1\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "CORDWOOD_BROKER": broker.kafka},
        )

    refused = produce()
    assert refused.returncode == 1
    assert "is compacted and requires a key on every record" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert produce("-K:").returncode == 0
    assert payloads(broker, "kept") == [b"1"]


def test_ingress_lines_have_keys_and_those_that_have_none_are_dead_letters(broker):
    """A compacted ingress topic stores keyed lines; keyless lines go to the dead-letter topic."""
    with Wire(broker.ingress) as wire:
        wire.hello("till")
        wire.send(b"a|1|1|one\n").acked(1)
        assert ask(broker.control, "CONFIGURE append cleanup.policy=compact") == b"OK"
        wire.send(b"a|1|2|two\n|1|3|no key\nb|1|4|four\n").acked(4)
    until(lambda: high_watermark(broker.control, "dead_letter") == 1, "the letter is there")
    assert payloads(broker, "append") == [b"one", b"two", b"four"]
    assert payloads(broker, "dead_letter") == [b"|1|3|no key"]


def test_a_delivery_with_a_keyless_record_is_refused_whole(broker):
    """One keyless record in a staged file rejects the whole delivery."""
    staging = Path(broker.data) / "staging" / "job"
    staging.mkdir(parents=True)
    records = [Record(0, 1, b"k", b"v"), Record(1, 1, None, b"v")]
    data = encode_batch(records)
    (staging / "file").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    part = {"topic": "kept", "partition": 0, "file": "file", "sha256": sha256}
    options = {"query": "q", "batch": 0, "job": "job", "parts": [part]}
    with pytest.raises(InvalidRecord, match="kept is compacted"):
        JsonClient(broker.http).post("/api/deliveries", options)
    assert high_watermark(broker.control, "kept") == 0


def test_an_append_that_was_on_its_way_when_the_policy_changed_is_refused(broker):
    """The committer applies the cleanup policy in force at the time of the write."""
    running = broker.service.broker
    partition = running.store.topic("kept").partition(0)

    def append(key: bytes | None, *, is_key_checked: bool = False) -> Append:
        data = bytearray(encode_batch([Record(0, 1, key, b"v")]))
        found = Append(partition, data, parse_headers(data), 1, lambda _: None)
        found.is_key_checked = is_key_checked
        return found

    appends = [append(b"k"), append(None), append(b"l"), append(None, is_key_checked=True)]
    committer = Committer("os")
    written = committer.write({partition: appends})
    outcomes = dict(committer.finish(written).outcomes)
    committer.close()
    kinds = [type(outcomes[each]) for each in appends]
    assert kinds == [Appended, InvalidRecord, Appended, Appended]


def test_records_acknowledged_before_the_policy_changed_stay(broker):
    """Compaction keeps existing records without a key, because nothing supersedes them."""
    for number in range(3):
        assert ask(broker.control, f"PUT plain {number}") == b"OK"
    assert ask(broker.control, "CONFIGURE plain cleanup.policy=compact") == b"OK"
    assert ask(broker.control, "PUT plain late").startswith(b"ERR INVALID_RECORD")
    supersede(broker, "plain")
    assert ask(broker.control, "CUT plain") == b"OK 1"
    compact(broker, "plain")
    assert payloads(broker, "plain") == [b"0", b"1", b"2", b"new"]
    (row,) = JsonClient(broker.http).get("/api/compaction", topic="plain")["partitions"]
    assert row["state"]["keyless_records"] == 3


def test_the_dead_letter_topic_cannot_be_compacted(broker):
    """A compact policy for the dead-letter topic is rejected; other policies are accepted."""
    assert ask(broker.control, "REGISTER dead_letter") == b"OK"
    for policy in ("compact", "compact,delete"):
        reply = ask(broker.control, f"CONFIGURE dead_letter cleanup.policy={policy}")
        assert reply.startswith(b"ERR INVALID_CONFIG dead_letter is the dead-letter topic")
    assert ask(broker.control, "CONFIGURE dead_letter cleanup.policy=consume") == b"OK"


def test_dead_letters_of_a_topic_that_was_compacted_before_are_kept_all_the_same(tmp_path):
    """If the dead-letter topic is already compacted, bad lines are still stored and kept."""
    with Broker(tmp_path / "data", durability="os", pipeline="off") as broker:
        assert ask(broker.control, "REGISTER letters") == b"OK"
        assert ask(broker.control, "CONFIGURE letters cleanup.policy=compact") == b"OK"
    settings = {"durability": "os", "pipeline": "off", "dead_letter_topic": "letters"}
    with Broker(tmp_path / "data", **settings) as broker:
        with Wire(broker.ingress) as wire:
            wire.send(b"bad one\nbad two\n").end().rest()
        until(lambda: high_watermark(broker.control, "letters") == 2, "both are there")
        supersede(broker, "letters")
        assert ask(broker.control, "CUT letters") == b"OK 1"
        compact(broker, "letters")
        assert payloads(broker, "letters") == [b"bad one", b"bad two", b"new"]


def test_markers_of_transactions_have_no_keys_and_are_taken(broker):
    """A compacted topic accepts transaction markers, which have no record key."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "t"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("kept", b"v", b"k")
    producer.commit_transaction(30)
    assert json.loads(ask(broker.control, "STATE kept"))["next_seq"] == 3
