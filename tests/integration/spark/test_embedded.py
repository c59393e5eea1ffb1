"""``cordwood serve`` is ready before its pipeline, which never outlives it."""

import os
import re
import signal
import subprocess
import sys

import pytest

from cordwood.client import Producer
from cordwood.lab.scenarios.cluster import WORKER
from cordwood.lab.scenarios.pipeline import routed
from cordwood.lab.scenarios.processes import command, descendants, is_alive
from cordwood.lab.scenarios.stage import SPARK_S, Child, wait_until
from support.http import JsonClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OURS = re.compile(
    r"\d{4}-\d\d-\d\d \S+ \w+ +cordwood\.|cordwood is ready:|  [a-z_]+ +127\.0\.0\.1:"
)
JAVA_GREETS = "incubator"


def family(broker: Child) -> dict[int, bytes]:
    """Return every descendant process of the broker with its command line."""
    return {pid: command(pid) for pid in descendants(broker.pid)}


def kinds(below: dict[int, bytes]) -> set[str]:
    """Return which of Java and the Python worker daemon are running."""
    java = re.compile(rb"[^\0]*java\0.*SparkSubmit", re.DOTALL)
    found = {"java" for line in below.values() if java.match(line)}
    return found | {"python" for line in below.values() if WORKER in line}


def end(broker: Child, number: signal.Signals) -> None:
    """Send the signal and wait for the broker to exit."""
    os.kill(broker.pid, number)
    wait_until(lambda: not broker.is_running, f"it heeds {number.name}", 60)
    broker.stop()


def not_ours(broker: Child) -> list[str]:
    """Return the output lines that cordwood did not write."""
    return [line for line in broker.log().splitlines() if not OURS.match(line)]


def test_serve_routes_by_itself_and_its_pipeline_dies_with_it(tmp_path):
    """A new broker routes records by itself; ``kill -9`` also ends its child processes."""
    broker = Child(tmp_path / "data", {"pipeline": "embedded"})
    http = JsonClient(broker.addresses["http"])
    try:
        assert http.get("/readyz")["ready"]
        assert http.get("/readyz")["pipeline"] == "starting"
        with Producer(broker.addresses["ingress"], name="p") as producer:
            producer.send_and_confirm([("jobs.x", "1")])
        wait_until(lambda: http.get("/api/pipeline")["state"] == "up", "it is up", SPARK_S)
        wait_until(lambda: routed(broker) == 1, "it is routed", SPARK_S)
        assert http.get("/api/topics", name="jobs", brief="1")["topics"]
        pid = http.get("/api/pipeline")["pid"]
        status = [sys.executable, "-m", "cordwood", "pipeline", "status"]
        output = subprocess.run(
            [*status, "--broker", broker.addresses["kafka"]],
            capture_output=True,
            text=True,
            check=True,
        )
        assert output.stdout.splitlines()[1].split()[:2] == ["up", str(pid)]
        below = family(broker)
        assert {"java", "python"} <= kinds(below)
    finally:
        broker.kill()
    wait_until(lambda: not any(map(is_alive, below)), "Java and workers are gone too", 30)


def test_ctrl_c_ends_java_and_workers_at_work_without_a_word_from_spark(tmp_path):
    """Ctrl-C ends all child processes; Spark's output goes only to ``pipeline.log``."""
    broker = Child(tmp_path / "data", {"pipeline": "embedded"})
    try:
        with Producer(broker.addresses["ingress"], name="p") as producer:
            producer.send_and_confirm([(f"jobs.{i}", "1") for i in range(100)])
            wait_until(lambda: routed(broker) == 100, "they are routed", SPARK_S)
            producer.send_and_confirm([(f"jobs.{i}", "2") for i in range(100)])  # busy again
        below = family(broker)
        assert {"java", "python"} <= kinds(below)
        end(broker, signal.SIGINT)
    finally:
        broker.kill()
    wait_until(lambda: not any(map(is_alive, below)), "nothing is left behind", 30)
    assert not_ours(broker) == []
    assert "job.opened job=route" in broker.log()
    assert JAVA_GREETS in (tmp_path / "data" / "pipeline.log").read_text(encoding="utf-8")


def test_a_stop_while_spark_is_starting_leaves_nothing_behind(tmp_path):
    """SIGTERM while Spark starts ends Java and leaves no process behind."""
    broker = Child(tmp_path / "data", {"pipeline": "embedded"})
    try:
        wait_until(lambda: "java" in kinds(family(broker)), "Java begins", SPARK_S)
        below = family(broker)
        end(broker, signal.SIGTERM)
    finally:
        broker.kill()
    wait_until(lambda: not any(map(is_alive, below)), "nothing is left behind", 30)
    assert not_ours(broker) == []
