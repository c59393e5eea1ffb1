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
