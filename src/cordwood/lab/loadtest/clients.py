"""Clients side by side: each with a partition and a share of its own, timed together."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cordwood.client.kafka import LATEST, KafkaClient
from cordwood.errors import UnavailableError
from cordwood.lab.loadtest.results import Load, Results
from cordwood.model import TopicPartition

PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.001

Work = Callable[[int, int], list[float]]  # partition and share → how long each answer took


def measure(workload: str, client: str, load: Load, work: Work) -> Results:
    """Run every client that has a share, at once, and wait for the last of them."""
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


def settle(kafka: str, tp: TopicPartition, count: int) -> None:
    """Nobody answers to acks=0: look until the partition has so many records."""
    deadline = time.monotonic() + PATIENCE_S
    with KafkaClient(kafka) as client:
        while (client.offset(tp, LATEST) or 0) < count:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{tp} lacks records after {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
