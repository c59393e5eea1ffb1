"""Send one record at a time; measure its latency to the acknowledgement and to a consumer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cordwood.batch.header import parse_headers
from cordwood.client.kafka import KafkaClient
from cordwood.lab.loadtest.batches import NAME, make_batch
from cordwood.lab.loadtest.results import Load, Report, Results
from cordwood.model import TopicPartition

LIMIT_S: Final = 5.0  # with a slow disk the run stops early with fewer records
_WAIT_MS: Final = 500


def latency(kafka: str, topic: str, load: Load, report: Report) -> tuple[Results, Results]:
    """Both latencies of the same records: to the acknowledgement, and to a waiting consumer."""
    tp = TopicPartition(topic, 0)
    sent_s: list[float] = []
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(_watch, kafka, tp, load, sent_s, ended)
        started = time.perf_counter()
        try:
            acked = _send(kafka, tp, load, sent_s, report)
        finally:
            ended.set()
        arrived = seen.result()
    seconds = time.perf_counter() - started
    return (
        _figures("latency to ack", load, seconds, acked),
        _figures("latency to consumer", load, seconds, arrived),
    )


def _send(
    kafka: str, tp: TopicPartition, load: Load, sent_s: list[float], report: Report
) -> list[float]:
    """Send records one by one and note when; returns the latency of each response."""
    waits: list[float] = []
    batch = make_batch(load, 1)
    with KafkaClient(kafka, tls=load.tls) as client:
        client.partitions(tp.topic)  # open the connection before timing starts
        deadline = time.perf_counter() + LIMIT_S
        while len(waits) < load.records and (began := time.perf_counter()) < deadline:
            sent_s.append(began)
            client.produce(tp, batch)
            waits.append(time.perf_counter() - began)
            report(1)
    return waits


def _watch(
    kafka: str, tp: TopicPartition, load: Load, sent_s: list[float], ended: threading.Event
) -> list[float]:
    """Fetch records as they arrive; returns the time from sending each to receiving it."""
    waits: list[float] = []
    with KafkaClient(kafka, tls=load.tls) as client:
        while not (ended.is_set() and len(waits) >= len(sent_s)):
            fetched = client.fetch({tp: len(waits)}, max_wait_ms=_WAIT_MS)[tp]
            now = time.perf_counter()
            headers = parse_headers(fetched.records or b"")
            end = headers[-1].end_offset if headers else 0
            waits += [now - sent_s[offset] for offset in range(len(waits), end)]
            if ended.is_set() and not headers:
                break  # the last record never arrived: the sender has raised an error
    return waits


def _figures(workload: str, load: Load, seconds: float, waits: list[float]) -> Results:
    return Results(
        workload=workload,
        client=NAME,
        records=len(waits),
        size_bytes=load.size_bytes,
        seconds=seconds,
        waits_s=waits,
    )
