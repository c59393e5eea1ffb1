"""Commands with ``--master`` on a standalone cluster with separate processes."""

import io
import json
import subprocess
import sys

import pytest

from cordwood.client import Producer
from cordwood.lab.scenarios.cluster import open_cluster
from cordwood.lab.scenarios.stage import ScenarioRun

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CHANGES = [(f"key.{i % 10}", f"value {i}") for i in range(100)]


def run(*words):
    """Run ``cordwood …`` and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "cordwood", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read_parquet(directory):
    import pyarrow.parquet as pq

    return pq.read_table(directory).to_pylist()


def test_archive_and_table_run_on_a_standalone_cluster(tmp_path):
    """The cluster's executor writes valid bundles and a table with the newest value per key."""
    with ScenarioRun("jobs", out=io.StringIO()) as stage, open_cluster(tmp_path) as cluster:
        broker = stage.serve()
        local = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
        quiet = [word for each in (*local, "spark.ui.enabled=false") for word in ("--conf", each)]
        where = ["--broker", broker.addresses["kafka"]]
        spark = [*where, "--master", cluster.url, *quiet]
        with Producer(broker.addresses["ingress"], name="p") as producer:
            producer.send_and_confirm(CHANGES)
        dest = ["--dest", tmp_path / "archive"]
        made = run("archive", "create", "append", "--cut", *dest, *spark, "--format", "json")
        assert sum(bundle["records"] for bundle in json.loads(made)) == len(CHANGES)
        run("archive", "verify", *dest, *where)
        place = run("table", "append", "--out", tmp_path / "table", *spark).strip()
        rows = {row["key"]: row["value"] for row in read_parquet(place)}
        worker = (tmp_path / "worker.log").read_text(encoding="utf-8")
    assert worker.count("Asked to launch executor") == 2, "one for each command"
    assert rows == {key.encode(): value.encode() for key, value in CHANGES}
