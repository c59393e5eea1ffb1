"""Run several clients concurrently, each with its own partition and share of the records."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cordwood.client.kafka import LATEST, KafkaClient
from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.results import Load, Results
from cordwood.model import TopicPartition
from cordwood.tls import ClientTls

PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.001

Work = Callable[[int, int], list[float]]  # partition, share → seconds that each response took


def measure(workload: str, client: str, load: Load, work: Work) -> Results:
    """Run all clients that have a share concurrently, and wait until the last one has ended."""
    shares = [(partition, share) for partition, share in enumerate(load.shares()) if share]
    started = time.perf_counter()
    with ThreadPoolExecutor(len(shares)) as pool:
        found = list(pool.map(lambda each: work(*each), shares))
    return Results(
        workload=workload,
        client=client,
        records=load.records,
        size_bytes=load.size_bytes,
        seconds=time.perf_counter() - started,
        waits_s=[wait for waits in found for wait in waits],
    )


def settle(kafka: str, tp: TopicPartition, count: int, tls: ClientTls | None) -> None:
    """Poll until the partition has ``count`` records, as acks=0 gets no response."""
    deadline = time.monotonic() + PATIENCE_S
    with KafkaClient(kafka, tls=tls) as client:
        while (client.offset(tp, LATEST) or 0) < count:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{tp} lacks records after {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
