"""Spark Connect: the client needs no Java, and the server has the package installed."""

import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from cordwood.client import Producer
from cordwood.lab.scenarios.pipeline import Driver, routed
from cordwood.lab.scenarios.stage import SPARK_S, ScenarioRun, read_all, wait_until
from cordwood.pipeline.worker_site import search_path
from support.connect_server import open_connect_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("grpc") is None, reason='needs "cordwood[connect]"'),
]

CLIENT = """
import json, sys
from cordwood.pipeline.runtime.tasks import run_tasks
from cordwood.spark import session, topic, topic_stream

remote, broker, data, checkpoint = sys.argv[1:]
spark = session(remote=remote)
where = {"topic": "orders", "kafka.bootstrap.servers": broker}
orders = spark.range(10).selectExpr("CAST(id AS STRING) AS key", "CAST(2 * id AS STRING) AS value")
orders.write.format("cordwood").options(**where).mode("append").save()
stream = topic_stream(spark, "orders", broker=broker, startingOffsets="earliest")
query = (
    stream.select("key", "value").writeStream.format("cordwood")
    .options(**where | {"topic": "copies"}).option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
print(json.dumps({
    "client": type(spark).__module__,
    "wire": topic(spark, "orders", broker=broker).count(),
    "files": sorted(row.offset for row in topic(spark, "orders", path=data).collect()),
    "stream": sorted(int(row.key) for row in topic(spark, "copies", broker=broker).collect()),
    "tasks": run_tasks(spark, len, ["a", "bb"]),
}))
spark.stop()
"""


@pytest.fixture(autouse=True)
def started_as_documented(monkeypatch):
    """Set PYTHONPATH as docs/spark.md requires, so that streaming workers start in time."""
    monkeypatch.setenv("PYTHONPATH", search_path(os.environ.get("PYTHONPATH")))


def test_a_session_on_a_connect_server_reads_writes_and_streams(tmp_path):
    """Reads, writes, streams and job tasks work through a Connect session."""
    with (
        ScenarioRun("connect", out=io.StringIO()) as stage,
        open_connect_server(tmp_path) as remote,
    ):
        broker = stage.serve()
        where = [broker.addresses["kafka"], stage.directory / "data", tmp_path / "checkpoint"]
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, remote, *map(str, where)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert client.returncode == 0, client.stderr[-3000:]
    output = json.loads(client.stdout.splitlines()[-1])
    assert output.pop("client").startswith("pyspark.sql.connect")
    ten = list(range(10))
    assert output == {"wire": 10, "files": ten, "stream": ten, "tasks": [1, 2]}


def test_the_router_runs_through_a_connect_server(tmp_path):
    """``cordwood pipeline run --remote`` delivers each record once and in order."""
    with (
        ScenarioRun("connect", out=io.StringIO()) as stage,
        open_connect_server(tmp_path) as remote,
    ):
        broker = stage.serve()
        driver = Driver(stage, broker.addresses["kafka"], remote=remote)
        try:
            driver.wait_ready()
            with Producer(broker.addresses["ingress"], name="p") as producer:
                for start in (0, 100):  # at least two micro-batches
                    producer.send_and_confirm([("k.x", str(start + i)) for i in range(100)])
                    reached = start + 100
                    wait_until(lambda to=reached: routed(broker) == to, "all are routed", SPARK_S)
        finally:
            driver.close()
        lines = read_all(broker.addresses["control"], "k", 200)
        assert [line.payload for line in lines] == [b"%d" % i for i in range(200)]
