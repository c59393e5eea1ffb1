"""Scenario: compaction under load, its effect on producer latency, and that no data is lost."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import quantiles

from cordwood.client import Client, Producer
from cordwood.errors import CordwoodError
from cordwood.lab.scenarios.stage import ScenarioRun, read_all

KEYS = 1000
FILL = 200_000
CHUNK = 5000
QUIET_S = 5.0


def under_load(stage: ScenarioRun, *, fill: int = FILL, quiet_s: float = QUIET_S) -> None:
    """Compare the p99 latency of single acknowledgements with and without compaction running."""
    child = stage.serve(pipeline="off")
    numbers = itertools.count()
    newest: dict[str, str] = {}
    with (
        Client(child.addresses["control"]) as client,
        Producer(child.addresses["ingress"], name="load") as producer,
    ):
        client.register("append")
        client.configure("append", {"cleanup.policy": "compact"})

        def send(count: int) -> None:
            made = [(f"key.{n % KEYS}", f"value {n}") for n in itertools.islice(numbers, count)]
            producer.send_and_confirm(made)
            newest.update(made)

        for _ in range(0, fill, CHUNK):
            send(min(CHUNK, fill))
        deadline = time.monotonic() + quiet_s
        quiet = _latencies(send, lambda: time.monotonic() < deadline)
        job = _start_job(child.addresses["kafka"])
        busy = _latencies(send, lambda: job.poll() is None)
        (outcome,) = json.loads(_output(job))
        client.cut("append")
    for name, latencies in (("quiet", quiet), ("compacting", busy)):
        cuts = quantiles(latencies, n=100)
        stage.say(name, acks=len(latencies), p50_ms=_ms(cuts[49]), p99_ms=_ms(cuts[98]))
    ratio = quantiles(busy, n=100)[98] / quantiles(quiet, n=100)[98]
    stage.say("compared", p99_ratio=f"{ratio:.2f}", frees=outcome["frees"])
    stage.check(outcome["records_after"] < outcome["records_before"], "records were compacted away")
    left = outcome["records_after"]
    total = next(numbers)
    lines = read_all(child.addresses["control"], "append", left + total - outcome["records_before"])
    found = {line.routing_key: (line.payload or b"").decode() for line in lines}
    stage.check(found == newest, "every key has the last value that was acknowledged", keys=KEYS)


def _latencies(send: Callable[[int], None], goes_on: Callable[[], bool]) -> list[float]:
    """Send one record at a time; returns the seconds until each acknowledgement."""
    found: list[float] = []
    while goes_on() or len(found) < 100:
        started = time.perf_counter()
        send(1)
        found.append(time.perf_counter() - started)
    return found


def _start_job(kafka: str) -> subprocess.Popen[str]:
    """Start ``cordwood compact`` in its own process, as a user would."""
    command = [sys.executable, "-m", "cordwood", "compact", "append", "--now"]
    where = ["--broker", kafka, "--format", "json"]
    return subprocess.Popen(
        [*command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _output(job: subprocess.Popen[str]) -> str:
    output, errors = job.communicate()
    if job.returncode:
        raise CordwoodError(f"cordwood compact ended with {job.returncode}: {errors[-800:]}")
    return output


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
