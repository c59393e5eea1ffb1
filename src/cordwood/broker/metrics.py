"""The metrics: a table of names and meanings, and one walk over plain counters when asked.

Nothing is counted here: hot paths change plain integers of their own, and a scrape reads them. The
table makes ``docs/metrics.md``; a sample whose name is not in it is our own mistake.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.batch.warmth import is_warm
from cordwood.broker.pipeline import PipelineState
from cordwood.log.commit import SYNC_BUCKETS

if TYPE_CHECKING:
    from cordwood.broker.broker import Broker


class Metric(NamedTuple):
    """A row of the table."""

    kind: str  # counter, gauge or histogram
    doc: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


TOPIC: Final = ("topic", "partition")

METRICS: Final[dict[str, Metric]] = {
    "cordwood_info": Metric("gauge", "1, with the version as a label.", ("version",)),
    "cordwood_kernels_loaded": Metric(
        "gauge", "1 once lines and records go through compiled code; 0 before the first."
    ),
    "cordwood_appended_records_total": Metric("counter", "Records made durable by the writer."),
    "cordwood_appended_bytes_total": Metric("counter", "Batch bytes made durable by the writer."),
    "cordwood_commits_total": Metric("counter", "Group commits."),
    "cordwood_fsync_seconds": Metric("histogram", "Time a file's sync took."),
    "cordwood_writer_waiting_records": Metric("gauge", "Records waiting for the writer."),
    "cordwood_writer_waiting_bytes": Metric("gauge", "Batch bytes waiting for the writer."),
    "cordwood_disk_full": Metric("gauge", "1 while appends wait for disk space."),
    "cordwood_ingress_records_total": Metric("counter", "Lines taken as records."),
    "cordwood_ingress_duplicates_total": Metric("counter", "Resent lines that were not stored."),
    "cordwood_ingress_rejected_total": Metric("counter", "Lines sent to the dead letters."),
    "cordwood_ingress_dropped_total": Metric("counter", "Lines dropped by drop_oldest."),
    "cordwood_ingress_blocked_total": Metric("counter", "Times a socket was left unread for room."),
    "cordwood_connections": Metric("gauge", "Open connections.", ("door",)),
    "cordwood_connections_accepted_total": Metric("counter", "Connections accepted.", ("door",)),
    "cordwood_connections_refused_total": Metric("counter", "Refused: door full.", ("door",)),
    "cordwood_connections_idle_closed_total": Metric("counter", "Closed as idle.", ("door",)),
    "cordwood_log_start_offset": Metric("gauge", "First offset still here.", TOPIC),
    "cordwood_high_watermark": Metric("gauge", "Records below it are durable.", TOPIC),
    "cordwood_log_bytes": Metric("gauge", "Bytes of the partition's segments.", TOPIC),
    "cordwood_segments": Metric("gauge", "Segments by state.", (*TOPIC, "state")),
    "cordwood_segments_held": Metric("gauge", "Segments due but held back now.", TOPIC),
    "cordwood_archived_end_offset": Metric("gauge", "Records below it are in bundles.", TOPIC),
    "cordwood_archive_bundles": Metric("gauge", "Archive bundles read back and verified.", TOPIC),
    "cordwood_partition_offline": Metric("gauge", "1 when the files cannot be served.", TOPIC),
    "cordwood_cuts_total": Metric("counter", "Segments sealed.", (*TOPIC, "reason")),
    "cordwood_reclaims_total": Metric("counter", "Segments reclaimed.", ("reason",)),
    "cordwood_reclaimed_bytes_total": Metric("counter", "Bytes reclaimed."),
    "cordwood_lost_records_total": Metric(
        "counter", "Records the hard cap took before the reader had them.", ("reader",)
    ),
    "cordwood_reader_position": Metric(
        "gauge", "Next offset of a registered reader.", ("reader", *TOPIC)
    ),
    "cordwood_reader_lag_records": Metric(
        "gauge", "Records a registered reader has not passed.", ("reader", *TOPIC)
    ),
    "cordwood_reader_held_bytes": Metric(
        "gauge", "Bytes of segments a registered reader has not passed.", ("reader", *TOPIC)
    ),
    "cordwood_topic_bytes": Metric("gauge", "Bytes of a topic's segments.", ("topic", "cleanup")),
    "cordwood_log_cleaner_compactions_total": Metric("counter", "Compaction passes.", TOPIC),
    "cordwood_log_cleaner_cleaned_bytes_total": Metric("counter", "Bytes compaction freed.", TOPIC),
    "cordwood_log_cleaner_dirty_ratio": Metric(
        "gauge", "Dirty share of what may be cleaned.", TOPIC
    ),
    "cordwood_log_cleaner_duration_seconds": Metric("gauge", "What the last pass took.", TOPIC),
    "cordwood_log_cleaner_live_records": Metric("gauge", "Records the last pass left.", TOPIC),
    "cordwood_log_cleaner_keyless_records_total": Metric(
        "counter", "Records without a key that compaction removed.", TOPIC
    ),
    "cordwood_log_cleaner_quarantined": Metric("gauge", "1 while passes fail.", TOPIC),
    "cordwood_pipeline_up": Metric("gauge", "1 while the embedded pipeline runs its jobs."),
    "cordwood_pipeline_restarts_total": Metric("counter", "Times the pipeline was restarted."),
    "cordwood_resident_memory_bytes": Metric("gauge", "Resident memory of the broker."),
}


def samples(broker: Broker) -> Iterator[Sample]:
    """Every sample of one scrape."""
    yield from _process(broker)
    yield from _writer(broker)
    yield from _ingress(broker)
    yield from _connections(broker)
    yield from _partitions(broker)
    yield from _monitor(broker)
    yield from _readers(broker)
    yield from _compaction(broker)


def exposition(broker: Broker) -> bytes:
    """Prometheus's text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(broker))
    return generate_latest(registry)


def snapshot(broker: Broker) -> dict[str, Any]:
    """The same samples as JSON, for the METRICS command: labelled ones as lists."""
    found: dict[str, Any] = {}
    for sample in samples(broker):
        if sample.labels:
            found.setdefault(sample.name, []).append({**sample.labels, "value": sample.value})
        else:
            found[sample.name] = sample.value
    stats = broker.writer.stats
    found["cordwood_fsync_seconds"] = {"count": stats.syncs, "sum": stats.sync_seconds}
    return found


class _Collector:
    """What prometheus_client asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        families: dict[str, Any] = {}
        for sample in samples(self._broker):
            row = METRICS[sample.name]
            if sample.name not in families:
                name = sample.name.removesuffix("_total")
                families[sample.name] = kinds[row.kind](name, row.doc, labels=row.labels)
            families[sample.name].add_metric(
                [sample.labels[label] for label in row.labels], sample.value
            )
        yield from families.values()
        name = "cordwood_fsync_seconds"
        buckets = _sync_buckets(self._broker.writer.stats.sync_buckets)
        yield HistogramMetricFamily(
            name,
            METRICS[name].doc,
            buckets=buckets,
            sum_value=self._broker.writer.stats.sync_seconds,
        )


def _sync_buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as the format wants them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, SYNC_BUCKETS), "+Inf"], list(counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _process(broker: Broker) -> Iterator[Sample]:
    from cordwood import __version__

    is_up = broker.pipeline.state is PipelineState.UP
    yield Sample("cordwood_pipeline_up", int(is_up))
    yield Sample("cordwood_pipeline_restarts_total", broker.pipeline.restarts)

    yield Sample("cordwood_info", 1, {"version": __version__})
    yield Sample("cordwood_kernels_loaded", int(is_warm()))
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - not a path of ours
        pages = int(file.read().split()[1])
    yield Sample("cordwood_resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE"))


def _writer(broker: Broker) -> Iterator[Sample]:
    stats = broker.writer.stats
    yield Sample("cordwood_appended_records_total", stats.records)
    yield Sample("cordwood_appended_bytes_total", stats.bytes)
    yield Sample("cordwood_commits_total", stats.commits)
    yield Sample("cordwood_writer_waiting_records", broker.writer.waiting_records)
    yield Sample("cordwood_writer_waiting_bytes", broker.writer.waiting_bytes)
    yield Sample("cordwood_disk_full", int(stats.disk_full))


def _ingress(broker: Broker) -> Iterator[Sample]:
    stats = broker.ingress.stats
    for name in ("records", "duplicates", "rejected", "dropped", "blocked"):
        yield Sample(f"cordwood_ingress_{name}_total", getattr(stats, name))


def _connections(broker: Broker) -> Iterator[Sample]:
    for name, door in broker.doors.items():
        labels = {"door": name}
        yield Sample("cordwood_connections", len(door.links), labels)
        yield Sample("cordwood_connections_accepted_total", door.accepted, labels)
        yield Sample("cordwood_connections_refused_total", door.refused, labels)
        yield Sample("cordwood_connections_idle_closed_total", door.timed_out, labels)


def _partitions(broker: Broker) -> Iterator[Sample]:
    for topic in list(broker.store.topics):
        for partition in broker.store.partitions(topic):
            labels = {"topic": topic, "partition": str(partition.tp.partition)}
            yield Sample("cordwood_log_start_offset", partition.log_start_offset, labels)
            yield Sample("cordwood_high_watermark", partition.high_watermark, labels)
            yield Sample("cordwood_log_bytes", partition.size_bytes, labels)
            sealed = len(partition.segments()) - 1
            yield Sample("cordwood_segments", 1, {**labels, "state": "active"})
            yield Sample("cordwood_segments", sealed, {**labels, "state": "sealed"})
            for reason, count in dict(partition.cuts).items():
                yield Sample("cordwood_cuts_total", count, {**labels, "reason": reason.value})
            held = broker.monitor.stats.held.get(partition.tp, 0)
            yield Sample("cordwood_segments_held", held, labels)
            bundles = broker.store.catalog.bundles(partition.tp)
            yield Sample("cordwood_archived_end_offset", bundles.end, labels)
            yield Sample("cordwood_archive_bundles", len(bundles.entries()), labels)
    for tp in broker.store.offline:
        labels = {"topic": tp.topic, "partition": str(tp.partition)}
        yield Sample("cordwood_partition_offline", 1, labels)


def _monitor(broker: Broker) -> Iterator[Sample]:
    stats = broker.monitor.stats
    for reason, count in stats.reclaims.items():
        yield Sample("cordwood_reclaims_total", count, {"reason": reason})
    yield Sample("cordwood_reclaimed_bytes_total", stats.reclaimed_bytes)
    for reader, count in stats.lost_records.items():
        yield Sample("cordwood_lost_records_total", count, {"reader": reader})


def _readers(broker: Broker) -> Iterator[Sample]:
    for row in broker.readers.describe(None):
        labels = {
            "reader": row["reader"],
            "topic": row["topic"],
            "partition": str(row["partition"]),
        }
        yield Sample("cordwood_reader_position", row["seq"], labels)
        yield Sample("cordwood_reader_lag_records", row["lag"], labels)
        yield Sample("cordwood_reader_held_bytes", row["held_bytes"], labels)


def _compaction(broker: Broker) -> Iterator[Sample]:
    for name, topic in list(broker.store.topics.items()):
        size_bytes = sum(partition.size_bytes for partition in topic.online())
        cleanup = ",".join(sorted(topic.config.cleanup_policy))
        yield Sample("cordwood_topic_bytes", size_bytes, {"topic": name, "cleanup": cleanup})
    for partition, facts, plan in broker.compaction.look():
        state = facts.state
        labels = {"topic": partition.tp.topic, "partition": str(partition.tp.partition)}
        values = {
            "compactions_total": state.passes,
            "cleaned_bytes_total": state.freed_bytes,
            "dirty_ratio": plan.ratio,
            "duration_seconds": state.duration_ms / 1000,
            "live_records": state.live_records,
            "keyless_records_total": state.keyless_records,
            "quarantined": int(state.failures > 0),
        }
        for name, value in values.items():
            yield Sample(f"cordwood_log_cleaner_{name}", value, labels)
