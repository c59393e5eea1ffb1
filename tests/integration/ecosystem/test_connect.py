"""Kafka Connect in distributed mode, with its settings, offsets and status in compacted topics."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from support.ecosystem import JARS, Jvm, java, needs_program, properties, wait_until
from support.kafka_clients import Confluent

pytestmark = [needs_program("connect"), pytest.mark.slow, pytest.mark.timeout(900)]
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


def worker(address: str) -> dict[str, object]:
    """Settings of a distributed worker with exactly-once sources."""
    topics = {f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")}
    factors = {f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")}
    return {
        "bootstrap.servers": address, "group.id": "connect",
        "exactly.once.source.support": "enabled", "listeners": "http://127.0.0.1:0",
        "key.converter": STRINGS, "value.converter": STRINGS,
        "offset.flush.interval.ms": 500, "plugin.discovery": "service_load", **topics, **factors,
        "offset.storage.partitions": 3, "status.storage.partitions": 2,
        "scheduled.rebalance.max.delay.ms": 0,
    }  # fmt: skip


def put(port: int, name: str, settings: dict[str, str]) -> None:
    """Create a connector through the worker's REST interface."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors/{name}/config",
        data=json.dumps(settings).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 201


def port_of(running: Jvm) -> int:
    """Wait until the worker answers, and return the port that it chose."""
    listening = re.compile(r"REST server listening at http://127.0.0.1:(\d+)")

    def is_healthy() -> bool:
        chosen = listening.search(running.log.read_text())
        try:
            url = f"http://127.0.0.1:{chosen[1]}/health" if chosen else ""
            with urllib.request.urlopen(url, timeout=5) as reply:
                return bool(json.load(reply)["status"] == "healthy")
        except (OSError, ValueError):  # not yet
            return False

    wait_until(is_healthy, running)
    chosen = listening.search(running.log.read_text())
    assert chosen
    return int(chosen[1])


def test_file_connectors_copy_each_line_once_though_the_worker_is_killed(broker, tmp_path: Path):
    """A source's lines are in the topic once, across ``kill -9``; a sink writes all of them."""
    source, sink, log = (tmp_path / name for name in ("source.txt", "sink.txt", "connect.log"))
    lines = [f"line {number}" for number in range(200)]
    source.write_text("".join(f"{line}\n" for line in lines[:100]))
    settings = properties(tmp_path / "worker.properties", worker(broker.kafka))
    command = (f"{JARS}/connect/*", "org.apache.kafka.connect.cli.ConnectDistributed", settings)

    def has_written(count: int, running: Jvm) -> None:
        wait_until(lambda: sink.exists() and len(sink.read_text().splitlines()) >= count, running)

    with java(*command, log=log) as first:
        port = port_of(first)
        kind = "org.apache.kafka.connect.file.FileStream"
        put(port, "in", {"connector.class": f"{kind}SourceConnector", "file": str(source),
                         "topic": "lines"})  # fmt: skip
        put(port, "out", {"connector.class": f"{kind}SinkConnector", "file": str(sink),
                          "topics": "lines",
                          "consumer.override.isolation.level": "read_committed"})  # fmt: skip
        has_written(100, first)
        first.kill()
    with source.open("a") as more:
        more.writelines(f"{line}\n" for line in lines[100:])
    with java(*command, log=log) as second:  # finds its connectors and offsets in the topics
        has_written(200, second)
    committed = Confluent().read(broker.kafka, "lines", 200)
    assert [record.value for record in committed] == [line.encode() for line in lines]
    assert set(sink.read_text().splitlines()) == set(lines)
