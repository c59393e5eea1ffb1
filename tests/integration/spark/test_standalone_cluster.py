"""Reads on a standalone cluster with separate master, worker and driver processes."""

import json
import os
import subprocess
import sys

import pytest

from cordwood.lab.scenarios.cluster import open_cluster
from cordwood.model import TopicPartition
from support.datadir import HandMade, records

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = """
import json, sys
from cordwood.spark import session, topic, topic_stream

master, data, out = sys.argv[1:]
local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = session(master=master, conf=local | {"spark.ui.enabled": "false"})
batch = topic(spark, "t", path=data, minPartitions=4).filter("offset >= 5")
stream = topic_stream(spark, "t", path=data, columns=["offset"], startingOffsets="earliest")
query = (
    stream.writeStream.format("parquet").option("path", out + "/rows")
    .option("checkpointLocation", out + "/checkpoint").trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
print(json.dumps({
    "master": spark.sparkContext.master,
    "tasks": batch.rdd.getNumPartitions(),
    "batch": sorted(row.offset for row in batch.select("offset").collect()),
    "stream": sorted(row.offset for row in spark.read.parquet(out + "/rows").collect()),
}))
spark.stop()
"""


def test_a_standalone_cluster_reads_as_an_embedded_session_does(data, tmp_path):
    """Batch and streaming reads work on executors that only have the package installed."""
    log = HandMade(data, TopicPartition("t", 0))
    log.append(*(records(start, start + 10) for start in range(0, 100, 10)))
    log.publish()
    with open_cluster(tmp_path) as cluster:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, cluster.url, str(data), str(tmp_path / "out")],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    log.close()
    assert driver.returncode == 0, driver.stderr[-3000:]
    output = json.loads(driver.stdout.splitlines()[-1])
    assert output["master"] == cluster.url
    assert output["tasks"] >= 4
    assert output["batch"] == list(range(5, 100))
    assert output["stream"] == list(range(100))
