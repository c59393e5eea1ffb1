"""A broker with a low open-file limit serves many topics and many clients at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.protocol.kafka.messages.topics import (
    CreateTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from support.limits import open_files
from support.lines import Served, Wire, high_watermark, http_get, until, wires

LIMIT = 1024
TOPICS = 650
CLIENTS = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data directory of a stopped broker with 650 topics, filled under the open-file limit."""
    path = tmp_path_factory.mktemp("few-files") / "data"
    with serving(path) as served:
        create_topics(served, TOPICS)
        write_to_all(served)
        assert_listeners_take(served, CLIENTS)
        assert descriptors(served) < LIMIT // 2
        assert served.stop() == 0
    return path


def serving(path):
    return Served(path, under=open_files(LIMIT), durability="os", kafka="127.0.0.1:0")


def topic(number):
    return f"topic-{number}"


def create_topics(served, count):
    """Create all topics in one request, as an admin tool does."""
    wanted = [CreateTopic(topic(number), 1, 1) for number in range(count)]
    with KafkaClient(served.addresses["kafka"], timeout_s=120) as client:
        reply = client.ask(CreateTopicsRequest(wanted, 120_000), CreateTopicsResponse)
    assert {answer.error_code for answer in reply.topics} == {0}


def write_to_all(served):
    """Write one acknowledged record to each topic."""
    with Wire(served.control) as wire:
        wire.send(b"".join(b"PUT topic-%d x\n" % number for number in range(TOPICS)))
        assert set(wire.lines(TOPICS)) == {b"OK"}


def assert_listeners_take(served, count):
    """Check that ``count`` control clients, HTTP and Kafka are served at the same time."""
    with contextlib.ExitStack() as stack:
        crowd = stack.enter_context(wires(served.control, count))
        assert {wire.ask(b"GET_ACK topic-0")[:4] for wire in crowd} == {b"ACK "}
        assert http_get(served.http, "/healthz")[0] == 200
        client = stack.enter_context(KafkaClient(served.addresses["kafka"]))
        assert client.partitions(topic(0))
    refused = served.metrics()["cordwood_connections_refused_total"]
    assert sum(row["value"] for row in refused) == 0


def descriptors(served):
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))


def test_more_topics_than_files_leave_every_listener_open_after_a_restart(data):
    """After a restart, 650 topics under a limit of 1,024 open files are read and written.

    The listeners accept 200 clients at the same time.
    """
    with serving(data) as served:
        assert_listeners_take(served, CLIENTS)
        ends = {high_watermark(served.control, topic(number)) for number in range(0, TOPICS, 50)}
        write_to_all(served)
        assert {high_watermark(served.control, topic(n)) for n in range(0, TOPICS, 50)} == {
            end + 1 for end in ends
        }
        assert descriptors(served) < LIMIT // 2
        assert http_get(served.http, "/readyz")[0] == 200
        assert served.stop() == 0


def test_a_crowd_that_takes_all_it_may_leaves_the_log_its_files(data):
    """Connections beyond their share of descriptors are refused; topics stay writable."""
    with serving(data) as served, Wire(served.control) as early:
        assert early.ask(b"GET_ACK topic-0").startswith(b"ACK ")
        with wires(served.control, LIMIT - 100) as crowd:
            assert crowd[-1].is_closed()
            early.send(b"".join(b"PUT topic-%d y\n" % number for number in range(TOPICS)))
            assert set(early.lines(TOPICS)) == {b"OK"}
            assert early.ask(b"REGISTER one-more") == b"OK"
        until(lambda: served.connections("control", early) == 1, "the crowd is gone")
        assert "raise `ulimit -n`" in served.log()


def test_a_limit_no_broker_can_live_with_stops_the_start_with_the_remedy(tmp_path):
    """A start under a too low open-file limit exits with 2 and a message with the remedy."""
    command = [sys.executable, "-m", "cordwood", "serve", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [*open_files(100), *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "may open only 100 files, but a broker needs 128; raise the limit" in done.stderr
    assert "Traceback" not in done.stderr
