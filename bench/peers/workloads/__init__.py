"""The workloads by name, in the order of the report."""

from __future__ import annotations

from bench.peers.measure import OwnWorkload, Workload
from bench.peers.workloads import crowd, end_to_end, idle, kafka, latency, lines, replay

RUNNING: dict[str, Workload] = {  # these use a server that is already running and warm
    "lines": lines.measure,
    "kafka": kafka.measure,
    "latency": latency.measure,
    "end_to_end": end_to_end.measure,
    "clients": crowd.clients,
    "topics": crowd.topics,
}
OWN: dict[str, OwnWorkload] = {  # these start their own server
    "idle": idle.measure,
    "replay": replay.measure,
}
