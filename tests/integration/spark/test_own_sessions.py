"""The user's own sessions: what docs/spark.md says about their Python and their workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import cordwood
from cordwood.lab.scenarios.cluster import JAVA
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.java import java_home
from support.connect_server import open_connect_server
from support.datadir import HandMade, records

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

JOB = """
import sys
from pyspark.sql import SparkSession

data, out, *remote = sys.argv[1:]
builder = SparkSession.builder
spark = (builder.remote(remote[0]) if remote else builder).getOrCreate()
options = {"subscribe": "t", "path": data, "startingOffsets": "earliest"}
query = (
    spark.readStream.format("cordwood").options(**options).load().select("offset")
    .writeStream.format("parquet").option("path", out + "/rows")
    .option("checkpointLocation", out + "/checkpoint").trigger(availableNow=True).start()
)
assert query.awaitTermination(500)
print(spark.read.parquet(out + "/rows").count())
spark.stop()
"""
WITHOUT_CORDWOOD = """#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -vxF '{source}' | paste -sd:)
export PYTHONPATH
exec '{python}' "$@"
"""
THEIRS = """
import os, sys
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    files = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    sockets = sum(os.path.islink(file) and "socket:" in os.readlink(file) for file in files)
    with open(NOTE, "a") as note:
        print(sockets, "pyarrow" in sys.modules, file=note)
"""


@pytest.fixture
def note(tmp_path, monkeypatch):
    """A file in which the user's ``sitecustomize`` records the state of a streaming worker.

    Our directory comes before the user's on PYTHONPATH.
    """
    note = tmp_path / "note"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(THEIRS.replace("NOTE", repr(str(note))))
    printed = [sys.executable, "-m", "cordwood.pipeline.worker_site"]
    ours = subprocess.check_output(printed, text=True).strip()
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [ours, str(theirs), before])))
    return note


@pytest.fixture
def job(data, tmp_path):
    """A user's program and its arguments."""
    made = HandMade(data, TopicPartition("t", 0))
    made.append(records(0, 50))
    made.publish()
    made.close()
    program = tmp_path / "my_job.py"
    program.write_text(JOB)
    return [str(program), str(data), str(tmp_path / "out")]


def output_of(*command, env=None):
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=540, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_a_stream_s_worker_connects_first_under_spark_submit(job, note, monkeypatch):
    """The worker connects to Java before it imports pyarrow; the user's sitecustomize runs."""
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    submit = shutil.which("spark-submit", path=os.path.dirname(sys.executable))  # noqa: PTH120
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    assert output_of(submit, "--master", "local[1]", *conf, *job) == "50"
    assert note.read_text() == "1 False\n"


@pytest.mark.skipif(find_spec("grpc") is None, reason='needs "cordwood[connect]"')
def test_a_stream_s_worker_connects_first_in_a_connect_server(job, note, tmp_path):
    """The same holds on a Connect server that has our directory on its PYTHONPATH."""
    with open_connect_server(tmp_path, "local[1]") as remote:
        assert output_of(sys.executable, *job, remote) == "50"
    assert note.read_text() == "1 False\n"


def test_a_program_of_an_environment_that_is_not_activated_finds_the_source(job, tmp_path):
    """``import cordwood.spark`` is enough where the python3 on PATH does not have cordwood."""
    program = Path(job[0])
    program.write_text("import cordwood.spark\n" + program.read_text())
    source = str(Path(cordwood.__file__).parents[1])
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(WITHOUT_CORDWOOD.format(source=source, python=sys._base_executable))
    other.chmod(0o755)
    environ = {
        "PATH": f"{other.parent}:/usr/bin:/bin",
        "PYTHONPATH": source,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    assert output_of(sys.executable, *job, env=environ) == "50"
