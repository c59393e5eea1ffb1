"""Spark jobs succeed on a machine whose cores are all busy, although workers start slowly.

Each test starts its own Spark in another process, because the environment of the workers is part
of what is tested. The tests measure no times and check only the result. Every process ends after
at most ``ENDS_S``, also if the test that started it was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from cordwood.lab.scenarios.cluster import open_cluster
from cordwood.model import TopicPartition
from support.datadir import HandMade, records

ENDS_S = 900
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(ENDS_S + 60)]

LOOPS = 8
LOOP = f"""
import os, time
started, parent = time.monotonic(), os.getppid()
while os.getppid() == parent and time.monotonic() < started + {ENDS_S}: pass
"""
STREAM = """
import sys, tempfile
from cordwood.pipeline.runtime.tasks import run_tasks
from cordwood.spark import session, topic, topic_stream

java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life: half of the CPU time
conf = {"spark.driver.extraJavaOptions": java, "spark.ui.enabled": "false"}
conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = session("busy", master=sys.argv[2], conf=conf)
query = (
    topic_stream(spark, "t", path=sys.argv[1], startingOffsets="earliest")
    .writeStream.format("noop").trigger(availableNow=True)
    .option("checkpointLocation", tempfile.mkdtemp()).start()
)
query.awaitTermination()
streamed = sum(each["numInputRows"] for each in query.recentProgress)
print(streamed, topic(spark, "t", path=sys.argv[1]).count(), run_tasks(spark, len, ["a", "bb"]))
"""
ALL_WELL = "50 50 [1, 2]"
SLOW_ARROW = """
import importlib, os, sys, time

if any("python_streaming_source_runner" in word for word in sys.orig_argv):
    time.sleep(12)  # longer than Spark waits for a worker to connect, and waits for no event
here = os.path.dirname(os.path.dirname(__file__))
sys.path = [path for path in sys.path if path != here]
del sys.modules["pyarrow"]
sys.modules["pyarrow"] = importlib.import_module("pyarrow")
"""


@pytest.fixture
def data(data):
    made = HandMade(data, TopicPartition("t", 0))
    made.append(records(0, 50))
    made.close()
    return data


def answer(program, data, master="local[1]", *, path=None):
    """Return the output of a program with its own Spark, with ``path`` added to PYTHONPATH."""
    command = [sys.executable, "-c", program, str(data), master]
    paths = [str(path) if path else "", os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    reply = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, timeout=ENDS_S
    )
    assert reply.returncode == 0, reply.stderr[-3000:]
    return reply.stdout.strip()


@contextmanager
def busy_loops():
    """Run processes that use all cores continuously."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.fixture
def slow(tmp_path):
    """A directory with a pyarrow whose import takes longer than Spark waits for a worker."""
    package = tmp_path / "slow" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SLOW_ARROW)
    return package.parent


def test_a_stream_opens_although_its_worker_imports_for_longer_than_spark_waits(data, slow):
    """The worker connects before it imports, so Spark's fixed ten-second timeout is not reached."""
    assert answer(STREAM, data, path=slow) == ALL_WELL


def test_the_same_holds_for_a_driver_whose_executors_are_elsewhere(data, slow, tmp_path):
    """The streaming worker runs beside the driver, so a cluster needs no extra setup."""
    with open_cluster(tmp_path) as cluster:
        assert answer(STREAM, data, cluster.url, path=slow) == ALL_WELL


def test_a_stream_a_query_and_tasks_end_beside_eight_busy_loops(data):
    """A stream, a batch query and tasks finish while all cores are busy."""
    with busy_loops():
        assert answer(STREAM, data) == ALL_WELL
