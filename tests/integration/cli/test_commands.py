"""The command line against a real broker, as a user runs it."""

import json
import os
import subprocess
import sys

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cordwood.testing import Broker


@pytest.fixture
def cordwood():
    """Runs ``cordwood WORDS`` against a broker for this test only."""
    with Broker() as broker:

        def run(*words, stdin="", broker_address=broker.kafka):
            return subprocess.run(
                [sys.executable, "-m", "cordwood", *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "CORDWOOD_BROKER": broker_address},
            )

        run.broker = broker
        yield run


def test_records_come_out_as_they_went_in(cordwood):
    """Compressed records keep keys, values and headers; ``-f`` formats the output."""
    made = cordwood("produce", "t", "-K:", "-z", "lz4", "-H", "x=y", stdin="a:1\nb:2:3\n")
    assert (made.returncode, made.stdout) == (0, "")
    seen = cordwood("consume", "t", "-e", "-f", r"%o %k=%v %h\n")
    assert seen.stdout == "0 a=1 x=y\n1 b=2:3 x=y\n"


def test_consume_finds_the_last_records_and_stops_after_a_count(cordwood):
    """``-o -N`` starts N records before the end; ``-n`` stops after a count."""
    cordwood("produce", "t", stdin="".join(f"{i}\n" for i in range(100)))
    assert cordwood("consume", "t", "-o", "-3", "-e").stdout == "97\n98\n99\n"
    assert cordwood("consume", "t", "-n", "2").stdout == "0\n1\n"


def test_group_goes_on_where_it_stopped(cordwood):
    """``-g`` starts at the group's committed offset and commits past the printed records."""
    cordwood("produce", "t", stdin="a\nb\nc\n")
    assert cordwood("consume", "t", "-g", "g", "-e", "-n", "2").stdout == "a\nb\n"
    assert cordwood("consume", "t", "-g", "g", "-e").stdout == "c\n"
    lag = json.loads(cordwood("group", "describe", "g", "--format", "json").stdout)
    assert lag == [{"topic": "t", "partition": 0, "cursor": 3, "end": 3, "lag": 0}]


def test_a_seek_past_the_end_or_before_the_start_stops_at_the_nearest_offset(cordwood):
    """``group seek`` clamps to the nearest offset and reports it; invalid offsets fail."""
    cordwood("produce", "t", stdin="a\nb\nc\n")
    past = cordwood("group", "seek", "g", "--topic", "t", "--to", "99", "--format", "json")
    assert json.loads(past.stdout)[0]["after"] == 3
    assert past.stderr == "t-0 has no offset 99; using the nearest, 3\n"
    within = cordwood("group", "seek", "g", "--to", "1", "--format", "json")
    assert (json.loads(within.stdout)[0]["after"], within.stderr) == (1, "")
    huge = cordwood("group", "seek", "g", "--to", str(2**63))
    assert (huge.returncode, huge.stdout) == (2, "")
    assert "is too large" in huge.stderr


def test_topic_lives_from_create_to_delete(cordwood):
    """Topics can be created, listed, altered and deleted; a missing topic gives exit code 3."""
    assert cordwood("topic", "create", "t", "-p", "2", "-c", "retention.ms=1000").returncode == 0
    assert cordwood("topic", "create", "t").returncode == 4
    listed = json.loads(cordwood("topic", "list", "--format", "json").stdout)
    assert [(row["topic"], row["partitions"]) for row in listed] == [("t", 2)]
    bad = cordwood("topic", "alter", "t", "-c", "segment.bytes=5000", "-c", "segmentms=1")
    assert bad.returncode == 2
    assert "did you mean segment.ms?" in bad.stderr
    assert cordwood("topic", "delete", "t").returncode == 2
    assert cordwood("topic", "delete", "t", "--yes").returncode == 0
    assert cordwood("topic", "describe", "t").returncode == 3


def test_cat_and_segment_verify_read_the_files_without_a_broker(cordwood):
    """``cat`` and ``segment verify`` need only the data directory."""
    cordwood("produce", "t", "-k", "key", stdin="hello\n")
    data = str(cordwood.broker.data)
    line = cordwood("cat", "t", "--data", data).stdout
    assert line.split("|")[0::2] == ["1", "key", ""]
    assert line.endswith("|hello\n")
    verified = cordwood("segment", "verify", "--data", data, "--format", "json")
    assert [row["end"] for row in json.loads(verified.stdout)] == ["clean"]


@pytest.mark.parametrize("size", [1, 600], ids=["plain", "by kernels"])
def test_cat_prints_what_a_subscriber_reads_from_files_and_broker_alike(cordwood, size):
    """``cat`` skips aborted transactions and records below the log start offset."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cordwood.broker.kafka, "transactional.id": "t"}
    )
    producer.init_transactions(20)
    for value, commit in (("gone", True), ("kept", True), ("void", False), ("last", True)):
        producer.begin_transaction()
        for _ in range(size):
            producer.produce("t", value * 250, "key")
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    admin = AdminClient({"bootstrap.servers": cordwood.broker.kafka})
    for done in admin.delete_records([TopicPartition("t", 0, size + 1)]).values():
        done.result(20)
    for where in ([], ["--data", str(cordwood.broker.data)]):
        lines = cordwood("cat", "t", *where).stdout.splitlines()
        assert [line.rpartition("|")[2][:4] for line in lines] == ["kept"] * size + ["last"] * size
        assert lines[0].startswith(f"{size + 2}|")
    assert cordwood("cat", "t", "-p", "9").returncode == 3


def test_flipped_byte_is_found_by_segment_verify(cordwood):
    """A damaged segment gives exit code 5."""
    cordwood("produce", "t", stdin="hello\n" * 50)
    log = next((cordwood.broker.data / "t-0").glob("*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[70] ^= 1
    log.write_bytes(damaged)
    verified = cordwood("segment", "verify", "--data", str(cordwood.broker.data))
    assert verified.returncode == 5


def test_reader_is_registered_listed_and_removed(cordwood):
    """A registered reader is listed with its lag until it is removed."""
    cordwood("produce", "t", stdin="a\nb\n")
    cordwood("reader", "register", "t", "slow")
    (row,) = json.loads(cordwood("reader", "list", "--format", "json").stdout)
    assert (row["reader"], row["lag"]) == ("slow", 2)
    cordwood("reader", "remove", "t", "slow", "--yes")
    assert json.loads(cordwood("reader", "list", "--format", "json").stdout) == []


def test_nobody_at_the_address_is_one_sentence_and_exit_code_six(cordwood):
    """An unreachable broker gives a one-line error with a remedy and exit code 6."""
    lonely = cordwood("topic", "list", broker_address="127.0.0.1:1")
    assert lonely.returncode == 6
    assert lonely.stderr.count("\n") == 1
    assert "cordwood serve" in lonely.stderr


def test_wrong_flag_is_usage_and_exit_code_two(cordwood):
    """Unknown options and commands give exit code 2."""
    assert cordwood("topic", "list", "--nope").returncode == 2
    assert cordwood("nope").returncode == 2


def test_closed_pipe_ends_consume_quietly(cordwood):
    """``consume | head`` exits when its output is closed, without waiting for a record."""
    cordwood("produce", "t", stdin="a\nb\nc\n")
    pipe = subprocess.Popen(
        [sys.executable, "-m", "cordwood", "consume", "t", "-b", cordwood.broker.kafka],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert pipe.stdout.readline() == b"a\n"
    pipe.stdout.close()
    assert (pipe.wait(timeout=30), pipe.stderr.read()) == (0, b"")
    pipe.stderr.close()


def test_check_tells_monitoring_by_exit_code(cordwood):
    """``check`` exits with 0 if healthy, 5 if a reader lags, 6 if the broker is unreachable."""
    cordwood("produce", "t", stdin="a\nb\n")
    cordwood("reader", "register", "t", "slow")
    assert cordwood("check").returncode == 0
    late = cordwood("check", "--lag", "1", "--format", "json")
    assert late.returncode == 5
    assert {row["check"]: row["state"] for row in json.loads(late.stdout)}[
        "slow on t-0"
    ] == "problem"
    assert cordwood("check", broker_address="127.0.0.1:1").returncode == 6


def test_a_disabled_listener_is_reported_as_off(cordwood):
    """A command that needs a disabled HTTP listener names the option that enables it."""
    with Broker(http="off") as broker:
        asked = cordwood("check", broker_address=broker.kafka)
    assert asked.returncode == 6
    assert "has no http listener; start it with --http" in asked.stderr


def test_a_missing_topic_is_answered_with_the_next_step(cordwood):
    """A missing topic gives exit code 3 and names the command that lists topics."""
    asked = cordwood("consume", "nope", "-e")
    assert asked.returncode == 3
    assert (
        asked.stderr == "cordwood: there is no topic nope; `cordwood topic list` shows all topics\n"
    )


def test_a_reader_that_had_enough_is_no_failure():
    """``cordwood cat t | head -1`` exits with 0 and prints no error."""
    with Broker() as broker:
        lines = b"".join(b"%d\n" % number for number in range(20_000))
        python = [sys.executable, "-m", "cordwood"]
        subprocess.run([*python, "produce", "t", "-q", "-b", broker.kafka], input=lines, check=True)
        child = subprocess.Popen(
            [*python, "cat", "t", "-b", broker.kafka],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        child.stderr.close()
        assert child.wait(60) == 0
