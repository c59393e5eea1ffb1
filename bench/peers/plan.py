"""Visits every contestant at each of its levels, in a shuffled order, round after round.

A server runs alone: it is started, warmed up in the same way as the others, measured by every
requested workload (also in a shuffled order), and removed before the next one starts. A workload
that fails on a server is reported and counted; the others continue.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.peers import client, rdkafka
from bench.peers.client import Client
from bench.peers.contestants import CONTESTANTS, Contestant, Level, Server
from bench.peers.measure import Measure, Scale, Visit
from bench.peers.provide import Missing
from bench.peers.results import BEFORE, OURS, Result
from bench.peers.workloads import OWN, RUNNING

LISTENERS = {"line": "lines", "kafka": "Kafka"}
WARM_S = 1.0
KERNELS_S = 60.0
BLOCK_WARM_S = 0.012  # a block takes about 20 ms without kernels, less than 2 with them


@dataclass
class Run:
    """All results of one run, for the report and the file."""

    seed: int
    scale: Scale
    results: dict[tuple[str, ...], Result] = field(default_factory=dict)
    contestants: list[dict[str, str]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, workload: str, server: str, level: str, measure: Measure) -> None:
        label = label_of(server, measure.listener)
        key = (workload, measure.case, label, level)
        result = self.results.setdefault(
            key,
            Result(workload, measure.case, label, level, measure.unit, measure.better),
        )
        result.note = measure.note or result.note
        result.values.append(measure.value)


def label_of(server: str, listener: str) -> str:
    """Return the server's name; ours includes the listener that was used."""
    is_ours = server in {OURS, BEFORE}
    return f"{server} ({LISTENERS[listener]})" if is_ours and listener in LISTENERS else server


def run(
    names: Sequence[str],
    scale: Scale,
    seed: int,
    contestants: Sequence[type[Contestant]] = CONTESTANTS,
) -> Run:
    """Run all rounds of the named workloads."""
    done = Run(seed, scale)
    chance = random.Random(seed)
    if not names:
        return done
    kinds = available(done, contestants)
    with Client() as asking:
        for number in range(scale.rounds):
            visits = [(kind, level) for kind in kinds for level in kind.settings]
            chance.shuffle(visits)
            for kind, level in visits:
                say(f"round {number + 1}/{scale.rounds}: {kind.name}, {level}")
                order = chance.sample(list(names), len(names))
                visited(done, kind, level, order, asking)
    return done


def available(done: Run, contestants: Sequence[type[Contestant]]) -> list[type[Contestant]]:
    """Return the available contestants; record the others with the reason."""
    kinds = []
    for kind in contestants:
        try:
            version = kind.version()
        except Missing as reason:
            done.skipped[kind.name] = str(reason)
            say(f"SKIPPED {kind.name}: {reason}")
            continue
        kinds.append(kind)
        for level, setting in kind.settings.items():
            done.contestants.append(
                {"name": kind.name, "version": version, "level": level, "settings": setting}
            )
    return kinds


def visited(
    done: Run, kind: type[Contestant], level: Level, names: Sequence[str], asking: Client
) -> None:
    for name in names:
        if name in OWN and not kind.is_bound:
            measured = OWN[name](kind, level, asking, done.scale)
            gather(done, name, kind.name, level, measured)
    running = [name for name in names if name in RUNNING]
    if not running:
        return
    try:
        with Server(kind, level) as server:
            visit = Visit(server, asking, done.scale)
            warm(visit)
            for name in running:
                gather(done, name, kind.name, level, RUNNING[name](visit))
    except Exception:  # noqa: BLE001 a server that does not start must not stop the others
        traceback.print_exc()
        done.failed.append(f"{', '.join(running)} on {kind.name}, {level}")


def gather(
    done: Run, workload: str, server: str, level: Level, measured: Iterator[Measure]
) -> None:
    began = time.perf_counter()
    try:
        for measure in measured:
            done.add(workload, server, level, measure)
    except Exception:  # noqa: BLE001 one workload's failure must not stop the others
        traceback.print_exc()
        done.failed.append(f"{workload} on {server}, {level}")
    spent = time.perf_counter() - began
    if spent > 0.1:
        say(f"  {workload}: {spent:.1f} s")


def warm(visit: Visit) -> None:
    """Send messages until code is compiled and files are open, which distorts the first seconds."""
    server, asking = visit.server, visit.client
    server.prepare()
    for listener in server.speeches:
        if listener == "raw lines":
            continue
        address = server.addresses[listener]
        if listener == "line":
            arguments = (address, listener, BLOCK_WARM_S, KERNELS_S)
            if not asking.ask(client.until_quick, *arguments):
                raise ValueError(f"{server.name} did not become warm in {KERNELS_S:.0f} s")
        asking.ask(
            client.pump, address, "kafka batched" if listener == "kafka" else listener, WARM_S
        )
        asking.ask(client.one_in_flight, address, listener, WARM_S)
    if visit.speaks_kafka:
        rdkafka.create(visit.bootstrap, ["warm"])
        asking.ask(rdkafka.produce, visit.bootstrap, "warm", 100, 300_000, "all", "none")
        asking.ask(rdkafka.fetch, visit.bootstrap, "warm", 300_000)
        asking.ask(rdkafka.produce, visit.bootstrap, "warm", 1024, 30_000, "all", "none")
        asking.ask(rdkafka.fetch, visit.bootstrap, "warm", 330_000)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
