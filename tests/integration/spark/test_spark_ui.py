"""Spark's UI for cordwood commands on a cluster with more cores than the driver.

The tests read the REST API that provides the UI's data.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.config import MIB
from cordwood.lab.scenarios.cluster import JAVA, open_cluster
from cordwood.lab.scenarios.stage import ScenarioRun
from cordwood.model import Record, TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CORES = (os.cpu_count() or 1) + 2  # cores that the cluster's worker advertises
RECORDS_PER_TASK = 17  # of almost 1 MiB each: a task reads at least 16 MiB
LETTERS = 5_000 * CORES  # a replay task reads at least 5,000
BUNDLE_RECORDS = 10
DRIVER = """
import json, sys, urllib.request
from pyspark.sql import SparkSession
from cordwood.cli.app import app
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.runtime.runner import Context, open_route
from cordwood.pipeline.runtime.session import open_session, parallelism

broker, master, conf, commands = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
spark = open_session(master=master, conf=conf)
print("ASKING", flush=True)
at_once = parallelism(spark)  # the cluster has no worker yet
stop, SparkSession.stop = SparkSession.stop, lambda self: None  # one application for all commands
for words in commands:
    app([*words, "--broker", broker, "--master", master], prog_name="cordwood",
        standalone_mode=False)
for name in ("spark.jobGroup.id", "spark.job.description"):
    spark.sparkContext.setLocalProperty(name, None)
route = open_route(Context(spark, BrokerAddress(broker)))
route.query.processAllAvailable()
assert route.failure() is None, route.failure()
route.stop()
context = spark.sparkContext
context._jsc.sc().listenerBus().waitUntilEmpty()
base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"

def get(what):
    with urllib.request.urlopen(f"{base}/{what}") as answer:
        return json.load(answer)

print(json.dumps({"at_once": at_once, "jobs": get("jobs"), "stages": get("stages")}))
stop(spark)
"""


def fill(broker, topic, count, *, value, batch):
    """Produce ``count`` equal records to partition 0 of a new topic."""
    tp, now_ms = TopicPartition(topic, 0), int(time.time() * 1000)
    with KafkaClient(broker) as client:
        client.create_topic(topic, 1, {})
        for start in range(0, count, batch):
            rows = [Record(at, now_ms, b"k.x", value) for at in range(min(batch, count - start))]
            client.produce(tp, encode_batch(rows))


@contextmanager
def driver_on(work, broker, commands):
    """Start a driver that asks for the cluster's cores before a worker exists; yield it."""
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
    }
    report = [json.dumps(conf), json.dumps([[*map(str, words)] for words in commands])]
    started = []

    def start(master):
        command = [sys.executable, "-c", DRIVER, broker, master, *report]
        with (work / "driver.log").open("w") as log:
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
        assert started[0].stdout.readline() == "ASKING\n", (work / "driver.log").read_text()

    try:
        with open_cluster(work, cores=CORES, before_workers=start):
            yield started[0]
    finally:
        for driver in started:
            driver.kill()
            driver.communicate()


@pytest.fixture(scope="module")
def ui(tmp_path_factory):
    """The jobs and stages of all commands, from the driver's UI."""
    work = tmp_path_factory.mktemp("ui")
    commands = [
        ["archive", "create", "append", "--cut", "--dest", work / "archive",
         "--bundle-records", BUNDLE_RECORDS],
        ["audit", "append"],
        ["dlq", "replay", "--to", "mended"],
        ["dlq", "replay", "--to", "mended", "--name", "again", "--dry-run"],
        ["sql", "SELECT max(offset) FROM append"],
        ["table", "append", "--out", work / "table"],
    ]  # fmt: skip
    with ScenarioRun("ui", out=io.StringIO()) as stage:
        broker = stage.serve().addresses["kafka"]
        fill(broker, "append", RECORDS_PER_TASK * CORES, value=bytes(MIB - 1024), batch=1)
        fill(broker, "dead_letter", LETTERS, value=b"letter", batch=5_000)
        with driver_on(work, broker, commands) as driver:
            printed, _ = driver.communicate(timeout=500)
    assert driver.returncode == 0, (work / "driver.log").read_text()[-3000:]
    return json.loads(printed.splitlines()[-1])


def tasks_of(ui, label):
    """Return the task count of the first stage of each job with this description."""
    first = {stage["stageId"]: stage["numTasks"] for stage in ui["stages"]}
    jobs = [job for job in ui["jobs"] if re.match(label, job["description"])]
    return [first[min(job["stageIds"])] for job in sorted(jobs, key=lambda job: job["jobId"])]


def test_the_cluster_s_cores_are_known_before_the_first_job_is_planned(ui):
    """Parallelism is the cluster's, although Spark reports two cores before executors register."""
    assert ui["at_once"] == CORES


def test_every_job_says_what_it_does(ui):
    """Every job's description starts with its command and names what it works on."""
    found = {job["jobId"]: job.get("description", "") for job in ui["jobs"]}
    known = (
        r"cordwood archive: archive append: ",
        r"cordwood audit: audit batch headers of append",
        r"cordwood replay: replay dead_letter to mended, \d+ of \d+ letters",
        r"cordwood replay: dry run, dead_letter to mended",
        r"cordwood sql: SELECT max\(offset\) FROM append",
        r"cordwood table: table append: ",
        r"route\.append\n.*batch = \d+",  # Spark's own description of a streaming query
    )
    for text in found.values():
        assert any(re.match(label, text, re.DOTALL) for label in known), text
    for label in known:
        assert any(re.match(label, text, re.DOTALL) for text in found.values()), label
    groups = {job["jobGroup"] for job in ui["jobs"] if not job["description"].startswith("route.")}
    assert groups == {"cordwood"}


@pytest.mark.parametrize(
    "label",
    [
        "cordwood archive: archive append: read batch headers",
        "cordwood audit: audit batch headers",
        "cordwood replay: replay dead_letter",
        "cordwood sql: SELECT",
        "cordwood table: table append: newest value",
        r"route\.append",
    ],
)
def test_work_for_many_is_shared_by_all_cores_of_the_cluster(ui, label):
    """Each reading stage has one task per executor core of the cluster."""
    assert tasks_of(ui, label)[0] == CORES


def test_an_archive_has_a_task_for_every_bundle(ui):
    """Each bundle is written by its own task."""
    bundles = -(-RECORDS_PER_TASK * CORES // BUNDLE_RECORDS)
    label = f"cordwood archive: archive append: write {bundles} bundles"
    assert tasks_of(ui, label) == [bundles]
