"""The router through real Spark: where records go, and that each goes there once.

The pipeline is ``cordwood pipeline run``, a process of its own, as it would be on a cluster.
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
from cordwood.lab.scenarios.stage import Child, Failed, ScenarioRun, read_all, wait_until

ROUTED: Final = {"test": 40, "jobs": 40, "random": 10, "bar": 10}
START_S: Final = 180.0  # for Spark, on a machine with much else to do
LOOK_S: Final = 0.1
RECORDS: Final = 200_000
KILLS: Final = 20
DRIVER_KILLS: Final = 3  # each costs a start of Spark
EXECUTOR_JAVA: Final = f"spark.executor.extraJavaOptions={JAVA}"
KEYS: Final = ("test.probe", "jobs.process_{}", "jobs.notify", "random.unknown_{}", ".nowhere_{}")
ROUTES: Final = ("test", "jobs", "jobs", "random", "dead_letter")


class Driver:
    """``cordwood pipeline run --jobs route`` as a child process."""

    def __init__(
        self,
        stage: ScenarioRun,
        broker: str,
        *,
        master: str = "local[2,4]",
        remote: str | None = None,
    ) -> None:
        """Starts it; ``wait_ready`` tells when it routes."""
        spark = ("--remote", remote) if remote else ("--master", master)
        flags = ("--broker", broker, *spark, "--jobs", "route", "--lifeline")
        conf = () if remote else ("--conf", "spark.ui.enabled=false", "--conf", EXECUTOR_JAVA)
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

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._process.pid

    def report(self) -> dict[str, float]:
        """What it said of the router last."""
        return {name: n for name, n in self._report.items() if isinstance(n, int)}

    def descendants(self) -> list[tuple[int, bytes]]:
        """Every process below it, and how each was started."""
        return [(pid, command(pid)) for pid in descendants(self.pid)]

    def wait_ready(self) -> None:
        """Until its streams are open."""
        wait_until(lambda: self._is_ready.is_set() or not self.is_running, "READY", START_S)
        if not self.is_running:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"the pipeline did not start: {tail}")

    @property
    def is_running(self) -> bool:
        """Whether the driver lives."""
        return self._process.poll() is None

    def kill(self) -> None:
        """``kill -9`` of the driver; Spark's Java goes with it."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End it, if it has not ended, and wait."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join(timeout=30)
        self._process.stdout.close()


# --- routing --------------------------------------------------------------------------------------


def routing(stage: ScenarioRun) -> None:
    """100 messages of five key families, through Spark: test 40, jobs 40, random 10, bar 10."""
    routing_decision(stage)
    broker = stage.serve()
    control = broker.addresses["control"]
    driver = Driver(stage, broker.addresses["kafka"])
    try:
        keys = [f.format(i) for f, n in zip(FAMILIES, COUNTS, strict=True) for i in range(n)]
        with Producer(broker.addresses["ingress"], name="families") as producer:
            producer.send_and_confirm([(key, f"message {i}") for i, key in enumerate(keys)])
        driver.wait_ready()
        wait_until(lambda: routed(broker) == len(keys), "every message is routed", START_S)
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
    """How far the router has come."""
    rows = HttpClient(broker.addresses["http"]).get("/api/readers", topic=topic)["readers"]
    return sum(row["seq"] for row in rows if row["reader"] == "route")


# --- exactly once ---------------------------------------------------------------------------------


def exactly_once(stage: ScenarioRun) -> None:
    """200,000 records, 20 times ``kill -9`` of broker, driver, executor or workers: routed once."""
    play_exactly_once(stage, RECORDS, KILLS, DRIVER_KILLS)


def play_exactly_once(stage: ScenarioRun, records: int, kills: int, driver_kills: int) -> None:
    """The same at any size."""
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
    """Who dies when: so many drivers, the others in equal parts, in an order of chance."""
    others = ("broker", "executor", "workers")
    victims = ["driver"] * driver_kills
    victims += [others[i % len(others)] for i in range(kills - driver_kills)]
    chance.shuffle(victims)
    return victims


def _send_and_kill(havoc: Havoc, shares: list[list[tuple[str, str]]], victims: list[str]) -> None:
    """A share is on its way while somebody dies; the next one when the router moves again."""
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
    """In pieces, so that several micro-batches are under way while something dies."""
    size = -(-len(messages) // 5)
    for start in range(0, len(messages), size):
        producer.send_and_confirm(messages[start : start + size], timeout_s=120)
        time.sleep(0.1)


class Havoc:
    """A broker and a driver that are killed and started again, and the cluster the tasks run on."""

    def __init__(self, stage: ScenarioRun, cluster: Cluster) -> None:
        """Starts broker and driver."""
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
        """How far the router has come."""
        return routed(self._broker) if self._broker.is_running else 0

    def kill(self, victim: str) -> None:
        """At a random moment of the next second."""
        time.sleep(self._stage.random.uniform(0, 1))
        self._kills += 1
        self._stage.say("kill", number=self._kills, victim=victim, routed=self.routed())
        self._acts[victim]()

    def wait_alive(self) -> None:
        """Until the router has moved since it was last asked: the next kill meets it at work."""
        self.wait(lambda: self.routed() > self._seen, "the router moves again")
        self._seen = self.routed()

    @staticmethod
    def wait(holds: Callable[[], bool], what: str) -> None:
        """Now and then is enough: asking takes cores that what is waited for needs."""
        wait_until(holds, what, START_S, every_s=LOOK_S)

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
        """All that are found, and at least one: a kill that met nobody would prove nothing."""
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
