"""``cordwood serve`` with its pipeline: ready without waiting for it, and never outlived by it."""

import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.client import Producer
from cordwood.client.http import HttpClient
from cordwood.scenario.pipeline import START_S, routed
from cordwood.scenario.stage import Child, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_serve_routes_by_itself_and_its_pipeline_dies_with_it(tmp_path):
    """A record pushed into a fresh broker is in its route; ``kill -9`` leaves no process behind."""
    broker = Child(tmp_path / "data", {"pipeline": "embedded"})
    http = HttpClient(broker.addresses["http"])
    try:
        assert http.get("/readyz")["ready"]
        assert http.get("/readyz")["pipeline"] == "starting"
        with Producer(broker.addresses["ingress"], name="p") as producer:
            producer.send_and_confirm([("jobs.x", "1")])
        wait_until(lambda: http.get("/api/pipeline")["state"] == "up", "it is up", START_S)
        wait_until(lambda: routed(broker) == 1, "it is routed", START_S)
        assert http.get("/api/topics", name="jobs", brief="1")["topics"]
        pid = http.get("/api/pipeline")["pid"]
        command = [sys.executable, "-m", "cordwood", "pipeline", "status"]
        said = subprocess.run(
            [*command, "--broker", broker.addresses["kafka"]],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.splitlines()[1].split()[:2] == ["up", str(pid)]
    finally:
        broker.kill()
    wait_until(lambda: not _lives(pid), "the pipeline is gone too", 30)


def _lives(pid: int) -> bool:
    """Whether it runs; one that waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
