"""The workloads by the names they are asked for, in the order they are shown."""

from __future__ import annotations

from bench.peers.measure import OwnWorkload, Workload
from bench.peers.workloads import crowd, end_to_end, idle, kafka, latency, lines, replay

RUNNING: dict[str, Workload] = {  # on a server that is already running, and warm
    "lines": lines.measure,
    "kafka": kafka.measure,
    "latency": latency.measure,
    "end_to_end": end_to_end.measure,
    "clients": crowd.clients,
    "topics": crowd.topics,
}
OWN: dict[str, OwnWorkload] = {  # they start a server of their own
    "idle": idle.measure,
    "replay": replay.measure,
}
