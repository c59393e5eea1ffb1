"""Scenarios: the router on real Spark sends records to the right topics, exactly once.

The pipeline is ``cordwood pipeline run`` in its own process, as it would be on a cluster.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cordwood.client import Client, Producer
from cordwood.client.http import HttpClient
from cordwood.lab.scenarios.cluster import JAVA, Cluster, open_cluster
from cordwood.lab.scenarios.delivery import COUNTS, FAMILIES
from cordwood.lab.scenarios.delivery import routing as routing_decision
from cordwood.lab.scenarios.processes import command, descendants, is_alive
from cordwood.lab.scenarios.stage import (
    LOOK_S,
    SPARK_S,
    Child,
    ChildProcess,
    Failed,
    ScenarioRun,
    read_all,
    wait_until,
)
from cordwood.protocol.api.readers import ListReaders

ROUTED: Final = {"test": 40, "jobs": 40, "random": 10, "bar": 10}

RECORDS: Final = 200_000
KILLS: Final = 20
DRIVER_KILLS: Final = 3  # after each, Spark must start again
EXECUTOR_JAVA: Final = f"spark.executor.extraJavaOptions={JAVA}"
KEYS: Final = ("test.probe", "jobs.process_{}", "jobs.notify", "random.unknown_{}", ".nowhere_{}")
ROUTES: Final = ("test", "jobs", "jobs", "random", "dead_letter")


class Driver(ChildProcess):
    """``cordwood pipeline run --jobs route`` as a child process."""

    def __init__(
        self,
        stage: ScenarioRun,
        broker: str,
        *,
        master: str = "local[2,4]",
        remote: str | None = None,
    ) -> None:
        """Starts the process; ``wait_ready`` waits until it routes."""
        spark = ("--remote", remote) if remote else ("--master", master)
        flags = ("--broker", broker, *spark, "--jobs", "route", "--lifeline")
        conf = () if remote else ("--conf", "spark.ui.enabled=false", "--conf", EXECUTOR_JAVA)
        self._stage = stage
        self._log = stage.directory / "pipeline.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cordwood", "pipeline", "run", *flags, *conf],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._is_ready = threading.Event()
        self._report: dict[str, object] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == b"READY":
                self._is_ready.set()
            elif line.startswith(b"{"):
                self._report = json.loads(line).get("route", {})

    def report(self) -> dict[str, float]:
        """The integer fields of the router's last report."""
        return {name: n for name, n in self._report.items() if isinstance(n, int)}

    def descendants(self) -> list[tuple[int, bytes]]:
        """The pid and command line of every descendant."""
        return [(pid, command(pid)) for pid in descendants(self.pid)]

    def wait_ready(self) -> None:
        """Wait until the driver's streams are open."""
        wait_until(
            lambda: self._is_ready.is_set() or not self.is_running,
            "READY",
            SPARK_S,
            waiting=lambda: self._stage.say("waiting", until="Spark has started"),
        )
        if not self.is_running:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"the pipeline did not start: {tail}")

    def kill(self) -> None:
        """Send SIGKILL to the driver; Spark's JVM ends with it."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Close its stdin, which ends the driver, and wait."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join(timeout=30)
        self._process.stdout.close()


# --- routing --------------------------------------------------------------------------------------


def routing(stage: ScenarioRun) -> None:
    """100 messages of five key families, routed by Spark: test 40, jobs 40, random 10, bar 10."""
    routing_decision(stage)
    broker = stage.serve()
    control = broker.addresses["control"]
    driver = Driver(stage, broker.addresses["kafka"])
    try:
        keys = [f.format(i) for f, n in zip(FAMILIES, COUNTS, strict=True) for i in range(n)]
        with Producer(broker.addresses["ingress"], name="families") as producer:
            producer.send_and_confirm([(key, f"message {i}") for i, key in enumerate(keys)])
        driver.wait_ready()
        wait_until(lambda: routed(broker) == len(keys), "every message is routed", SPARK_S)
    finally:
        driver.close()
    with Client(control) as client:
        counts = {topic: client.get_ack(topic) for topic in ROUTED}
        stage.check(counts == ROUTED, "every family is where it belongs", **counts)
        stage.check(client.get_ack("dead_letter") == 0, "no dead letters")
    for topic, count in ROUTED.items():
        wanted = [f"message {i}" for i, key in enumerate(keys) if key.split(".")[0] == topic]
        found = [(line.payload or b"").decode() for line in read_all(control, topic, count)]
        stage.check(found == wanted, f"{topic} holds them in the order they came")


def routed(broker: Child, topic: str = "append") -> int:
    """The number of records that the router has processed."""
    rows = HttpClient(broker.addresses["http"]).call(ListReaders(topic)).readers
    return sum(row.seq for row in rows if row.reader == "route")


# --- exactly once ---------------------------------------------------------------------------------


def exactly_once(stage: ScenarioRun) -> None:
    """200,000 records, 20 times ``kill -9`` of broker, driver, executor or workers: routed once."""
    play_exactly_once(stage, RECORDS, KILLS, DRIVER_KILLS)


def play_exactly_once(stage: ScenarioRun, records: int, kills: int, driver_kills: int) -> None:
    """Run ``exactly_once`` with any number of records and kills."""
    messages = [(KEYS[i % 5].format(i), f"id-{i}") for i in range(records)]
    shares = [messages[records * i // kills : records * (i + 1) // kills] for i in range(kills)]
    with open_cluster(stage.directory) as cluster:
        havoc = Havoc(stage, cluster)
        try:
            havoc.driver.wait_ready()
            _send_and_kill(havoc, shares, plan_victims(stage.random, kills, driver_kills))
            havoc.wait(lambda: havoc.routed() == records, "everything is routed")
        finally:
            havoc.driver.close()
    _check_routes(stage, havoc.addresses["control"], messages)


def plan_victims(chance: random.Random, kills: int, driver_kills: int) -> list[str]:
    """Which processes to kill, in random order: ``driver_kills`` drivers, the others evenly."""
    others = ("broker", "executor", "workers")
    victims = ["driver"] * driver_kills
    victims += [others[i % len(others)] for i in range(kills - driver_kills)]
    chance.shuffle(victims)
    return victims


def _send_and_kill(havoc: Havoc, shares: list[list[tuple[str, str]]], victims: list[str]) -> None:
    """Kill a process while each share is sent; the next share waits until the router advances."""
    with (
        ThreadPoolExecutor(1) as pool,
        Producer(havoc.addresses["ingress"], name="source", timeout_s=120) as producer,
    ):
        for victim, share in zip(victims, shares, strict=True):
            sending = pool.submit(_send, producer, share)
            havoc.kill(victim)
            sending.result()
            havoc.wait_alive()


def _send(producer: Producer, messages: list[tuple[str, str]]) -> None:
    """Send in pieces, so that the kill falls among several micro-batches."""
    size = -(-len(messages) // 5)
    for start in range(0, len(messages), size):
        producer.send_and_confirm(messages[start : start + size], timeout_s=120)
        time.sleep(0.1)


class Havoc:
    """Kills and restarts a broker, a driver, and processes of the cluster that runs the tasks."""

    def __init__(self, stage: ScenarioRun, cluster: Cluster) -> None:
        """Starts the broker and the driver."""
        self._stage = stage
        self._cluster = cluster
        self._kills = self._seen = 0
        self._broker = stage.serve()
        self.addresses = self._broker.addresses
        self.driver = self._start_driver()
        self._acts: dict[str, Callable[[], object]] = {
            "broker": self._kill_broker,
            "driver": self._kill_driver,
            "executor": self._kill_executor,
            "workers": self._kill_workers,
        }

    def routed(self) -> int:
        """The number of records that the router has processed; 0 while the broker is down."""
        return routed(self._broker) if self._broker.is_running else 0

    def kill(self, victim: str) -> None:
        """Kill a process at a random moment within the next second."""
        time.sleep(self._stage.random.uniform(0, 1))
        self._kills += 1
        self._stage.say("kill", number=self._kills, victim=victim, routed=self.routed())
        self._acts[victim]()

    def wait_alive(self) -> None:
        """Wait until the router has advanced, so that the next kill interrupts real work."""
        self.wait(lambda: self.routed() > self._seen, "the router moves again")
        self._seen = self.routed()

    @staticmethod
    def wait(holds: Callable[[], bool], what: str) -> None:
        """Poll every ``LOOK_S`` only, as polling takes CPU time from the processes waited for."""
        wait_until(holds, what, SPARK_S, every_s=LOOK_S)

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker = self._stage.serve(**self.addresses)

    def _start_driver(self) -> Driver:
        return Driver(self._stage, self.addresses["kafka"], master=self._cluster.url)

    def _kill_driver(self) -> None:
        executors = self._cluster.executors()
        self.driver.kill()
        self.driver = self._start_driver()
        self.driver.wait_ready()
        self.wait(lambda: not any(map(is_alive, executors)), "the executor follows")

    def _kill_executor(self) -> None:
        self._kill_some(self._cluster.executors)

    def _kill_workers(self) -> None:
        self._kill_some(self._cluster.workers)

    def _kill_some(self, find: Callable[[], list[int]]) -> None:
        """Kill all processes found, and at least one, as otherwise the kill proves nothing."""
        killed: list[int] = []

        def kill() -> bool:
            killed.extend(pid for pid in find() if _kill(pid))
            return bool(killed)

        self.wait(kill, "there is somebody to kill")
        self._stage.say("killed", pids=",".join(map(str, killed)))


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _check_routes(stage: ScenarioRun, control: str, messages: list[tuple[str, str]]) -> None:
    for topic in dict.fromkeys(ROUTES):
        wanted = [m for i, m in enumerate(messages) if ROUTES[i % 5] == topic]
        with Client(control) as client:
            count = client.get_ack(topic)
        stage.check(count == len(wanted), f"{topic} has as many as were sent", records=count)
        lines = read_all(control, topic, count)
        found = [(line.routing_key, (line.payload or b"").decode()) for line in lines]
        stage.check(found == wanted, f"{topic} is the expected list, record by record")
