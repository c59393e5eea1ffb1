"""Scenarios: no loss and no duplicates after restarts and broken connections; routing decisions."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Self

from cordwood.address import parse_address
from cordwood.client import Client, Producer
from cordwood.decide.routing import Bindings, Routed, route
from cordwood.lab.scenarios.stage import ScenarioRun, read_all

RESUME_RECORDS = 500
RETRY_RECORDS = 20_000
RETRY_CHUNK = 5_000


def resume(stage: ScenarioRun) -> None:
    """500 records, ``kill -9``, 500 more: one contiguous sequence that resumes at 500."""
    child = stage.serve()
    _send(child.addresses["ingress"], "first", "batch1", RESUME_RECORDS)
    stage.say("kill", after=RESUME_RECORDS)
    child.kill()
    child = stage.serve()
    wanted = f"partition=append-0 seq_resume={RESUME_RECORDS}"
    stage.check(wanted in child.log(), f"the log says {wanted}")
    _send(child.addresses["ingress"], "second", "batch2", RESUME_RECORDS)
    lines = read_all(child.addresses["control"], "append", 2 * RESUME_RECORDS)
    stage.check([line.seq for line in lines] == list(range(1, 1001)), "seq is contiguous")
    first_new = lines[RESUME_RECORDS]
    stage.check(
        (first_new.n, first_new.payload) == (1, b"batch2"), "seq 501 is the first of batch 2"
    )


def _send(ingress: str, name: str, payload: str, count: int) -> None:
    with Producer(ingress, name=name) as producer:
        producer.send_and_confirm([("test.probe", payload)] * count)


def ack_retry(stage: ScenarioRun) -> None:
    """20,000 records over connections that keep breaking: each is stored exactly once."""
    child = stage.serve()
    with Breaker(child.addresses["ingress"], stage.random) as breaker:
        with Producer(breaker.address, name="retrier") as producer:
            for start in range(0, RETRY_RECORDS, RETRY_CHUNK):
                chunk = [("test.retry", f"id-{start + i}") for i in range(RETRY_CHUNK)]
                producer.send_and_confirm(chunk, timeout_s=120)
                with Client(child.addresses["control"]) as client:
                    stage.say("chunk", sent=start + RETRY_CHUNK, ack=client.get_ack())
        stage.check(breaker.cuts > 0, "connections were cut", cuts=breaker.cuts)
    lines = read_all(child.addresses["control"], "append", RETRY_RECORDS)
    with Client(child.addresses["control"]) as client:
        stored = client.get_ack()
    stage.check(stored == RETRY_RECORDS, "stored equals sent", stored=stored, sent=RETRY_RECORDS)
    payloads = [line.payload for line in lines]
    wanted = [f"id-{i}".encode() for i in range(RETRY_RECORDS)]
    stage.check(payloads == wanted, "every payload once, in order")


class Breaker:
    """A proxy that cuts each connection after a random number of bytes."""

    def __init__(self, target: str, chance: Random) -> None:
        self._target = parse_address(target)
        self._chance = chance
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.cuts = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        """Start to accept connections."""
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening, and wait for open connections to end."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            bytes_left = self._chance.randrange(50, 300_000)
            self._start(self._pass, near, far, bytes_left)
            self._start(self._pass, far, near, 2**62)

    def _pass(self, source: socket.socket, target: socket.socket, bytes_left: int) -> None:
        """Forward bytes until ``bytes_left`` is used up, then close both sockets."""
        try:
            while data := source.recv(min(16_384, bytes_left)):
                target.sendall(data)
                bytes_left -= len(data)
                if bytes_left == 0:
                    self.cuts += 1
                    break
        except OSError:
            pass  # the other direction was cut, or a peer went away
        finally:
            for end in (source, target):
                end.close()


FAMILIES = ("test.probe", "jobs.process.{}", "jobs.notify.{}", "random.unknown_{}", "bar.baz_{}")
COUNTS = (40, 20, 20, 10, 10)


def routing(stage: ScenarioRun) -> None:
    """100 routing keys of five families: only the routing decision that the pipeline makes."""
    keys = [
        family.format(i)
        for family, count in zip(FAMILIES, COUNTS, strict=True)
        for i in range(count)
    ]
    found = [route(key.encode(), Bindings(source="append")) for key in keys]
    counts = Counter(verdict.topic for verdict in found if isinstance(verdict, Routed))
    wanted = {"test": 40, "jobs": 40, "random": 10, "bar": 10}
    stage.check(counts == wanted, "topics by first part of the key", **counts)
    stage.check(sum(counts.values()) == len(keys), "no dead letters")
