"""Runs every file of examples/ as a user would, against a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RUN_HERE = {
    "aiokafka_client.py",
    "confluent_client.py",
    "kafka_python_client.py",
    "lines.sh",
    "service_test.py",
    "structured_streaming.py",
}


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return the standard output of a command, which must succeed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def example(name: str, *words: str | Path) -> str:
    """Return a Python example's output."""
    return run(sys.executable, EXAMPLES / name, *words)


@pytest.fixture
def broker():
    with Broker() as running:
        yield running


def produce(broker: Broker, topic: str, text: str, *words: str) -> None:
    """Produce records with the command line, one per line."""
    done = subprocess.run(
        [sys.executable, "-m", "cordwood", "produce", topic, *words, "-b", broker.kafka],
        input=text,
        text=True,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_example_is_run_by_a_test():
    """RUN_HERE lists exactly the files in examples/; tests/integration/ecosystem runs cdc/."""
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == RUN_HERE
    directories = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert directories - {"__pycache__"} == {"cdc"}


def test_confluent_example_reads_what_it_wrote(broker: Broker):
    """The example reads its own records and commits its group's offset."""
    printed = example("confluent_client.py", broker.kafka)
    assert printed == "".join(f"{i} customer-{i} order {i}\n" for i in range(3))
    shown = run(sys.executable, "-m", "cordwood", "group", "describe", "billing", "-b",
                broker.kafka, "--format", "csv")  # fmt: skip
    assert shown.splitlines()[1:] == ["orders,0,3,3,0"]


def test_kafka_python_example_reads_what_it_wrote(broker: Broker):
    """JSON records round-trip through the client's serializers."""
    printed = example("kafka_python_client.py", broker.kafka)
    assert printed == "0 kitchen 19.5\n1 kitchen 20.0\n2 kitchen 20.5\n"


def test_aiokafka_example_sees_only_the_committed_transfer(broker: Broker):
    """A ``read_committed`` consumer does not see the aborted transaction."""
    assert example("aiokafka_client.py", broker.kafka) == "alice -70\nbob +70\n"


@pytest.mark.needs("nc")
def test_line_example_stores_each_line_once(broker: Broker):
    """A record that is sent twice is stored once, so the mean is computed over three records."""
    printed = run("sh", EXAMPLES / "lines.sh", broker.ingress, broker.control).splitlines()
    assert printed[-2:] == ["ACK 3", "mean 22.5"]
    assert printed.count("ACK 3") == 3, printed


def test_service_example_passes_its_own_tests(tmp_path: Path):
    """The example's tests pass with only the installed plugin and pytest's defaults."""
    words = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tmp_path}"]
    assert "4 passed" in run(sys.executable, "-m", "pytest", *words, EXAMPLES / "service_test.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)  # Spark starts twice, on a machine that may be busy
def test_streaming_example_goes_on_where_it_stopped(broker: Broker, tmp_path: Path):
    """A second run continues from the checkpoint, and every record appears once.

    Spark commits a batch to its source when it plans the next one, so the committed cursor is one
    micro-batch behind.
    """
    produce(broker, "lines", "one\ntwo\n")
    words = (broker.kafka, tmp_path / "checkpoint")
    assert example("structured_streaming.py", *words) == "0 ONE\n1 TWO\n"
    produce(broker, "lines", "three\n")
    assert example("structured_streaming.py", *words) == "0 ONE\n1 TWO\n2 THREE\n"
    shown = run(sys.executable, "-m", "cordwood", "group", "describe", "shouting", "-b",
                broker.kafka, "--format", "csv")  # fmt: skip
    assert shown.splitlines()[1:] == ["lines,0,2,3,1"]
