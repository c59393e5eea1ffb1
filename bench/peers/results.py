"""The results of a run: one Result for each number, with its value in every round.

Nothing here starts or measures anything, so documents can be generated without the peers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

OURS = "cordwood"
BEFORE = "before"  # another installation of ours
MORE, LESS = "more", "less"  # which is better
CLIENT_BOUND = "client-bound"  # a note: the client was busy nine tenths of the time or more
TITLES = {
    "lines": "Line ingest, 100 B messages, sustained",
    "kafka": "Kafka produce and fetch",
    "latency": "Acknowledgement of one message in flight",
    "end_to_end": "From produce to consume, one message at a time",
    "clients": "Many clients, one message in flight each",
    "topics": "Many topics",
    "replay": "Replay from the start, and recovery after kill -9, by log size",
    "idle": "Ready and idle",
}


@dataclass
class Result:
    """One number with its values from all rounds."""

    workload: str
    case: str
    contestant: str
    level: str
    unit: str
    better: str
    note: str = ""
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def key(self) -> Key:
        return (self.workload, self.case, self.contestant, self.level)


Key = tuple[str, str, str, str]  # workload, case, contestant, level
Results = Mapping[Key, Result]


def by_key(results: Iterable[Result]) -> dict[Key, Result]:
    """Return the results by key, for tables and targets."""
    return {result.key: result for result in results}
