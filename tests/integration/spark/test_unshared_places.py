"""Archive, table and restore on a cluster whose executors do not share all directories.

Two workers run in separate mount namespaces. ``none`` is a private file system on both workers,
``mixed`` only on the second one, and ``shared`` is the same for all. Files written to the first two
are partly or wholly invisible to the driver, and no command may treat them as complete.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from cordwood.batch.records import encode_batch
from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import list_topic_archives
from cordwood.lab.scenarios.cluster import open_cluster
from cordwood.model import Record, TopicPartition
from cordwood.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = 400
KEYS = 150
PRIVATE = 'for place in $0; do mount -t tmpfs private "$place" || exit 1; done; exec "$@"'

DRIVER = """
import json, sys
from pathlib import Path
from cordwood.client.storage import open_storage
from cordwood.errors import CordwoodError
from cordwood.pipeline.archive import ArchiveRequest, create_archive
from cordwood.pipeline.runtime.broker_api import BrokerApi, BrokerAddress
from cordwood.pipeline.archive import restore_archive
from cordwood.client.topic_archive import list_topic_archives
from cordwood.pipeline.table import TableRequest, build_table
from cordwood.protocol.api.readers import ListReaders
from cordwood.protocol.api.topics import ReclaimTopics
from cordwood.spark import session
import shutil

master, kafka, root = sys.argv[1:]
root = Path(root)
spark = session(master=master, conf={
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "6", "spark.sql.adaptive.enabled": "false",
    "spark.cordwood.priority": "normal",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
})
api = BrokerApi(BrokerAddress(kafka))
results = {}

def attempt(name, work):
    try:
        results[name] = work()
    except CordwoodError as error:
        results[name] = f"{type(error).__name__}: {error}"

def archive(place):
    storage = open_storage(str(root / place / "archive"))
    request = ArchiveRequest(topic="t", bundle_records=50)
    return sum(entry.records for entry in create_archive(spark, api, storage, request))

def table(place):
    return build_table(spark, api, TableRequest(topic="u", out=root / place / "table")).rows

def restore(place):
    (topic_archive,) = list_topic_archives(open_storage(str(root / place / "archive")), "t")
    return restore_archive(spark, api, topic_archive, to=f"from-{place}", at_ms=None).records

for place in ("none", "mixed", "shared"):
    attempt(f"table {place}", lambda: table(place))
    attempt(f"archive {place}", lambda: archive(place))
    results[f"reclaim {place}"] = api.call(ReclaimTopics("t")).dropped
    results[f"readers {place}"] = len(api.call(ListReaders("u")).readers)
for place in ("none", "mixed"):
    shutil.rmtree(root / place / "archive", ignore_errors=True)
    shutil.copytree(root / "shared" / "archive", root / place / "archive")
for place in ("none", "mixed", "shared"):
    attempt(f"restore {place}", lambda: restore(place))
print(json.dumps(results))
spark.stop()
"""


@pytest.fixture(scope="module")
def broker():
    with Broker(durability="os", monitor_interval_ms=3_600_000) as broker:
        with KafkaClient(broker.kafka) as client:
            config = {"cleanup.policy": "consume", "archive.required": "true"}
            client.create_topic("t", 1, config)
            client.create_topic("u", 1, {"retention.ms": "-1"})
            for first in range(0, RECORDS, 40):
                rows = [Record(i, 0, b"%d" % ((first + i) % KEYS), b"v") for i in range(40)]
                for topic in ("t", "u"):
                    client.produce(TopicPartition(topic, 0), encode_batch(rows))
        with Client(broker.control) as client:
            client.register("t", "r")
            client.ack("t", "r", RECORDS)
            client.cut("t")
        yield broker


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    for place in ("none", "mixed", "shared"):
        (root / place).mkdir()
    return root


def away_from(*places):
    """Return the command prefix that gives a worker private file systems at these places."""
    covered = " ".join(map(str, places))
    return ("unshare", "-m", "sh", "-c", PRIVATE, covered)


@pytest.fixture(scope="module")
def results(broker, root, tmp_path_factory):
    """The result of every command, and what RECLAIM dropped after each place."""
    trial = [*away_from(root / "none"), "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("only root may give a Spark worker a disk of its own: NOT PROVED here")
    under = [away_from(root / "none"), away_from(root / "none", root / "mixed")]
    with open_cluster(tmp_path_factory.mktemp("cluster"), cores=1, under=under) as cluster:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, cluster.url, broker.kafka, str(root)],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=840,
            check=False,
        )
    assert driver.returncode == 0, driver.stderr[-3000:]
    return json.loads(driver.stdout.splitlines()[-1])


@pytest.mark.parametrize("place", ["none", "mixed"])
@pytest.mark.parametrize("job", ["archive", "table"])
def test_a_place_that_executors_do_not_share_is_refused_by_name(results, root, job, place):
    """The job fails with a one-line error and its remedy, and leaves no table files."""
    option = {"archive": "--dest", "table": "--out"}[job]
    assert results[f"{job} {place}"].startswith("UnavailableError: ")
    assert f"{root}/{place}/{job} is not shared" in results[f"{job} {place}"]
    assert (
        f"give {option} a directory that is mounted on every machine" in results[f"{job} {place}"]
    )
    left = {path.name for path in (root / place / "table").rglob("*") if path.is_file()}
    assert left == {"_table.lock"}


def test_a_place_that_all_share_gets_every_row(results, root):
    """Archive and table in a shared directory contain every record."""
    assert results["archive shared"] == RECORDS
    assert results["table shared"] == KEYS
    assert pq.read_table(root / "shared" / "table" / "current").num_rows == KEYS
    (topic_archive,) = list_topic_archives(open_storage(str(root / "shared" / "archive")), "t")
    entries, findings = topic_archive.verify()
    assert (sum(entry.records for entry in entries), findings) == (RECORDS, [])


def test_a_restore_from_a_place_executors_do_not_see_restores_nothing(results, broker):
    """Restore from an unshared directory fails with a remedy; from a shared one it is complete."""
    for place in ("none", "mixed"):
        assert "give --dest a directory that is mounted" in results[f"restore {place}"]
    assert results["restore shared"] == RECORDS
    with KafkaClient(broker.kafka) as client:
        ends = [
            client.offset(TopicPartition(f"from-{place}", 0), -1)
            for place in ("none", "mixed", "shared")
        ]
    assert (ends[0], ends[2]) == (0, RECORDS)


def test_reclaim_takes_only_what_the_broker_has_read(results, broker):
    """RECLAIM drops nothing until the archive in the shared directory is written."""
    (part,) = broker.service.broker.archive.describe("t").partitions
    places = {bundle.place.split("/")[-2] for bundle in part.bundles}
    assert places == {"shared"}
    assert part.verified_end == RECORDS
    dropped = [results[f"reclaim {place}"] for place in ("none", "mixed", "shared")]
    assert dropped == [0, 0, 1]


def test_a_table_that_could_not_be_written_holds_no_log_back(results):
    """Only a table that was written registers as a reader of its topic."""
    assert [results[f"readers {place}"] for place in ("none", "mixed", "shared")] == [0, 0, 1]
