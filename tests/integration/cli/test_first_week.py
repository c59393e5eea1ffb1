"""What a person meets in the first week: copying topics, following them, empty lists, results."""

import json
import os
import signal
import subprocess
import sys

import pytest

from cordwood.testing import Broker


@pytest.fixture
def cordwood():
    """Runs ``cordwood WORDS`` against a broker for this test only."""
    with Broker() as broker:
        environment = {**os.environ, "CORDWOOD_BROKER": broker.kafka}

        def start(*words, **options):
            return subprocess.Popen(
                [sys.executable, "-m", "cordwood", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                **options,
            )

        def run(*words, stdin=""):
            with start(*words, text=True) as child:
                out, err = child.communicate(stdin, timeout=60)
                return subprocess.CompletedProcess(words, child.returncode, out, err)

        run.start = start
        run.broker = broker
        yield run


LINES = [
    {"partition": 1, "timestamp": 5, "key": "k", "value": "v", "headers": []},
    {"partition": 0, "timestamp": 6, "key": None, "value": None, "headers": []},
    {
        "partition": 1,
        "timestamp": 7,
        "key_base64": "/wA=",
        "value": "ü\n",
        "headers": [{"key": "a", "value": "1"}, {"key": "a", "value_base64": "/w=="}],
    },
]


def test_a_topic_can_be_piped_into_another(cordwood):
    """``consume -J | produce -J`` copies partition, timestamp, key, value and headers."""
    for topic in ("from", "to"):
        # The records are from 1970: with a time limit, a slow run would find them deleted.
        cordwood("topic", "create", topic, "-p", "2", "-c", "retention.ms=-1")
    typed = "".join(json.dumps(line) + "\n" for line in LINES)
    made = cordwood("produce", "from", "-J", stdin=typed)
    assert (made.returncode, made.stderr) == (0, "appended 3 records to from\n")
    printed = cordwood("consume", "from", "-e", "-J").stdout
    assert cordwood("produce", "to", "-J", stdin=printed).returncode == 0
    copied = [
        json.loads(line) for line in cordwood("consume", "to", "-e", "-J").stdout.split("\n")[:-1]
    ]
    assert sorted(copied, key=lambda line: line["timestamp"]) == [
        {"topic": "to", "offset": offset, **line}
        for offset, line in zip((0, 0, 1), LINES, strict=True)
    ]


def test_a_bad_json_line_names_itself_and_what_was_appended(cordwood):
    """A bad line exits with 2, its number, its mistake, and how many records were appended."""
    bad = cordwood("produce", "t", "-J", stdin='{"value": "a"}\n{"vale": "b"}\n')
    assert bad.returncode == 2
    assert bad.stderr.startswith(
        "cordwood: line 2: 'vale' is not a field of a record; did you mean"
    )
    assert bad.stderr.endswith("; nothing was appended to t\n")


def test_a_partition_that_is_not_there_is_refused_or_chosen_by_key(cordwood):
    """A JSON partition beyond the topic's is refused; ``--repartition`` ignores it."""
    line = '{"value": "a", "key": "k", "partition": 7}\n'
    bad = cordwood("produce", "t", "-J", stdin=line)
    assert (bad.returncode, "t has no partition 7, only 0 to 0" in bad.stderr) == (2, True)
    good = cordwood("produce", "t", "-J", "--repartition", stdin=line)
    assert (good.returncode, good.stderr) == (0, "appended 1 record to t\n")


def test_tail_prints_the_last_records_and_follows_only_if_asked(cordwood):
    """``tail -n 2`` prints two records and exits; with ``-f`` it prints new ones until Ctrl-C."""
    cordwood("produce", "t", stdin="a\nb\nc\n")
    assert cordwood("tail", "t", "-n", "2").stdout == "b\nc\n"
    with cordwood.start("tail", "-f", "t", "-n", "1") as following:
        assert following.stdout.readline() == b"c\n"
        cordwood("produce", "t", stdin="d\n")
        assert following.stdout.readline() == b"d\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
        assert following.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("topic", "list"), "no topics yet; create one with `cordwood topic create NAME`"),
        (("group", "list"), "no groups yet; `cordwood consume TOPIC -g GROUP` creates one"),
        (("reader", "list"), "no readers yet; add one with"),
        (("route", "list"), "no bindings; keys go to"),
        (("dlq", "ls"), "no dead letters"),
        (("dlq", "sample"), "no dead letters"),
        (("dlq", "replays"), "no replays yet"),
        (("pipeline", "deliveries"), "no deliveries yet"),
    ],
)
def test_an_empty_list_says_so_on_stderr_only(cordwood, words, output):
    """An empty table is a sentence on stderr; ``-J`` prints an empty list and nothing else."""
    shown = cordwood(*words)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr.startswith(output)
    listed = cordwood(*words, "-J")
    assert (json.loads(listed.stdout), listed.stderr) == ([], "")


def test_every_change_says_what_it_did(cordwood):
    """Each changing command reports the object and the change in one line on stderr."""
    changes = {
        "topic create t -c retention.ms=1000": "created topic t: 1 partition, retention.ms=1000",
        "topic alter t --unset retention.ms --partitions 2": (
            "altered topic t: retention.ms is its default again, 2 partitions"
        ),
        "reader register t r": "registered reader r on t: RECLAIM waits for it",
        "reader reset t r 0 -p 1": "moved reader r on t-1 to offset 0",
        "reader remove t r --yes": "removed reader r from t",
        "route set a.b t": "bound key a.b to t, from the next micro-batch on",
        "route set a t": "bound keys that start with a to t, from the next micro-batch on",
        "route remove a": "removed the binding of keys that start with a",
        "group seek g --topic t --to end": "moved group g on 2 partitions",
        "group delete g --yes": "deleted group g and its committed offsets",
        "topic delete t --yes": "deleted topic t and its records",
    }
    for line, output in changes.items():
        done = cordwood(*line.split())
        assert (done.returncode, done.stderr) == (0, f"{output}\n"), line


def test_dead_letters_are_counted_by_reason_and_not_by_connection(cordwood):
    """Two bad lines over two connections are one row: a client's port does not count."""
    host, port = cordwood.broker.ingress.rsplit(":", 1)
    import socket

    for _ in range(2):
        with socket.create_connection((host, int(port))) as sender:
            sender.sendall(b"bad\n")
            sender.shutdown(socket.SHUT_WR)
            sender.recv(1)
    (row,) = json.loads(cordwood("dlq", "ls", "-J").stdout)
    assert (row["letters"], row["topic"]) == (2, "line ingress")


def test_describe_shows_settings_with_their_source(cordwood):
    """Name, partitions and settings with sources are on stdout, as text and as JSON."""
    created = cordwood("topic", "create", "t", "-p", "2", "-c", "retention.ms=7d")
    assert created.returncode == 0
    described = cordwood("topic", "describe", "t")
    assert described.stdout.splitlines()[0] == "topic t: 2 partitions"
    assert described.stdout.splitlines()[-1].split() == ["retention.ms", "604800000", "topic"]
    assert described.stderr == ""
    (as_json,) = json.loads(cordwood("topic", "describe", "t", "-J").stdout)
    assert as_json["topic"] == "t"
    assert [part["partition"] for part in as_json["partitions"]] == [0, 1]
    mine = {"setting": "retention.ms", "value": "604800000", "source": "topic"}
    assert as_json["settings"] == [mine]
    (full,) = json.loads(cordwood("topic", "describe", "t", "--defaults", "-J").stdout)
    assert mine in full["settings"]
    assert {"setting": "cleanup.policy", "value": "delete", "source": "default"} in full["settings"]


def test_sizes_and_durations_take_units_in_options_too(cordwood):
    """Options that take a size take 1MiB; a wrong one gives exit code 2 and the form."""
    assert cordwood("check", "--held", "1MiB").returncode == 0
    refused = cordwood("check", "--held", "1 parsec")
    assert (refused.returncode, "64KiB, 512MiB" in refused.stderr) == (2, True)
    assert cordwood("topic", "create", "x", "-c", "segment.bytes=7d").returncode == 2
