"""What a workload gets, and what it yields.

A workload is a function of a Visit: one running and warm contestant, the client process, and the
scale. It yields Measures, or nothing if it does not apply to a contestant. The plan turns them into
Results, one value for each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bench.peers.client import Client
from bench.peers.contestants import Contestant, Level, Server
from bench.peers.results import LESS, MORE


class Scale(NamedTuple):
    """How large and how long; the quick scale only shows that everything works."""

    rounds: int
    seconds: float  # for one steady measurement
    records: int  # for one Kafka transfer of 100 B
    log_records: tuple[int, int]  # small and large log, for what must not depend on size
    topics: int
    clients: int


FULL = Scale(3, 2.0, 300_000, (10_000, 1_000_000), 1_000, 200)
QUICK = Scale(1, 1.0, 100_000, (10_000, 200_000), 200, 200)


class Measure(NamedTuple):
    """One number of one round."""

    case: str  # what was measured
    value: float
    unit: str
    better: str = MORE
    listener: str = ""  # which of the server's protocols, if it has several
    note: str = ""


@dataclass(frozen=True)
class Visit:
    """One running and warm contestant."""

    server: Server
    client: Client
    scale: Scale

    @property
    def bootstrap(self) -> str:
        return "{}:{}".format(*self.server.addresses["kafka"])

    @property
    def speaks_kafka(self) -> bool:
        return "kafka" in self.server.addresses


Workload = Callable[[Visit], Iterator[Measure]]
OwnWorkload = Callable[[type[Contestant], Level, Client, Scale], Iterator[Measure]]


def percentiles(case: str, taken: list[float], listener: str, note: str = "") -> Iterator[Measure]:
    """Yield p50, p99 and p99.9 of milliseconds."""
    marks = statistics.quantiles(taken, n=1000, method="inclusive")
    for name, at in (("p50", 500), ("p99", 990), ("p99.9", 999)):
        remark = note or f"{len(taken):,} samples a round"
        yield Measure(f"{case}, {name}", marks[at - 1], "ms", LESS, listener, remark)
