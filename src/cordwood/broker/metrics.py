"""The metrics: a table of names and meanings, and one generator per family that reads the values.

Each generator does little work before its next sample, so that a scrape can serve other requests in
between (``exposition``). One that must inspect much before its first sample yields None meanwhile.
Collections that others may change during the scrape are copied before iteration.

Nothing is counted here: hot paths update plain integers of their own, and a scrape reads them.
``docs/metrics.md`` is generated from the table. A sample whose name is not in it is a bug.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cordwood.batch.kernels.loader import kernels_ready
from cordwood.broker.jobs.pipeline_status import PipelineState
from cordwood.broker.lag import by_topic, furthest_behind, group_lags
from cordwood.log.health.registry import Condition
from cordwood.model import TopicPartition
from cordwood.protocol.api.readers import GroupRow

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
GROUP_LAGS_MAX: Final = 1000  # pairs of group and topic in one scrape

METRICS: Final[dict[str, Metric]] = {
    "cordwood_info": Metric("gauge", "1, with the version as a label.", ("version",)),
    "cordwood_kernels_loaded": Metric("gauge", "1 once the compiled kernels are in use."),
    "cordwood_appended_records_total": Metric("counter", "Records made durable by the writer."),
    "cordwood_appended_bytes_total": Metric("counter", "Batch bytes made durable by the writer."),
    "cordwood_commits_total": Metric("counter", "Group commits."),
    "cordwood_fsync_seconds": Metric("histogram", "Duration of a file sync."),
    "cordwood_writer_waiting_records": Metric("gauge", "Records waiting for the writer."),
    "cordwood_writer_waiting_bytes": Metric("gauge", "Batch bytes waiting for the writer."),
    "cordwood_disk_full": Metric("gauge", "1 while appends wait for disk space."),
    "cordwood_data_directory_lost": Metric(
        "gauge", "1 when the data directory was moved, replaced or removed under the broker."
    ),
    "cordwood_ingress_records_total": Metric("counter", "Lines accepted as records."),
    "cordwood_ingress_duplicates_total": Metric("counter", "Resent lines that were not stored."),
    "cordwood_ingress_rejected_total": Metric("counter", "Lines sent to the dead letters."),
    "cordwood_ingress_dropped_total": Metric("counter", "Lines dropped by drop_oldest."),
    "cordwood_ingress_blocked_total": Metric(
        "counter", "Times a socket was left unread because buffers were full."
    ),
    "cordwood_connections": Metric("gauge", "Open connections.", ("listener",)),
    "cordwood_connections_accepted_total": Metric(
        "counter", "Connections accepted.", ("listener",)
    ),
    "cordwood_connections_refused_total": Metric(
        "counter", "Connections refused because the listener was full.", ("listener",)
    ),
    "cordwood_connections_idle_closed_total": Metric(
        "counter", "Connections closed because they were idle.", ("listener",)
    ),
    "cordwood_connections_foreign_total": Metric(
        "counter",
        "Peers that spoke another protocol (HTTP or TLS to a line listener), and HTTP requests for "
        "a foreign host or of a foreign page.",
        ("listener", "error"),
    ),
    "cordwood_log_start_offset": Metric("gauge", "First offset in the log.", TOPIC),
    "cordwood_high_watermark": Metric("gauge", "Records below this offset are durable.", TOPIC),
    "cordwood_log_bytes": Metric("gauge", "Bytes of the partition's segments.", TOPIC),
    "cordwood_segments": Metric("gauge", "Segments by state.", (*TOPIC, "state")),
    "cordwood_segments_held": Metric(
        "gauge", "Segments that are due for removal but held by a reader or the archive.", TOPIC
    ),
    "cordwood_archived_end_offset": Metric(
        "gauge", "Records below this offset are in archive bundles.", TOPIC
    ),
    "cordwood_archive_bundles": Metric("gauge", "Archive bundles that jobs have verified.", TOPIC),
    "cordwood_archive_verified_end_offset": Metric(
        "gauge",
        "Records below this offset are in bundles that the broker has compared with its log.",
        TOPIC,
    ),
    "cordwood_partitions_unopened": Metric(
        "gauge",
        "Partitions not opened since the start; they have no metrics and are not part of totals.",
    ),
    "cordwood_partition_offline": Metric(
        "gauge", "1 when the partition accepts no writes or cannot be served.", TOPIC
    ),
    "cordwood_partition_problem": Metric(
        "gauge", "1 while something is wrong with the partition.", (*TOPIC, "condition")
    ),
    "cordwood_damaged_ranges": Metric(
        "gauge", "Ranges of offsets that cannot be read and that no operator has accepted.", TOPIC
    ),
    "cordwood_accepted_damaged_ranges": Metric(
        "gauge", "Ranges of offsets that cannot be read, which an operator accepted.", TOPIC
    ),
    "cordwood_damage_found_total": Metric(
        "counter", "Damaged ranges found by reads and by the scrub."
    ),
    "cordwood_scrubbed_segments_total": Metric("counter", "Sealed segments the scrub read."),
    "cordwood_scrubbed_bytes_total": Metric("counter", "Bytes the scrub read."),
    "cordwood_background_tasks_died": Metric(
        "gauge", "Background tasks that failed; restart the broker.", ("task",)
    ),
    "cordwood_cuts_total": Metric("counter", "Segments sealed.", (*TOPIC, "reason")),
    "cordwood_reclaims_total": Metric("counter", "Segments reclaimed.", ("reason",)),
    "cordwood_reclaimed_bytes_total": Metric("counter", "Bytes reclaimed."),
    "cordwood_lost_records_total": Metric(
        "counter",
        "Records dropped by retention.hard.bytes or retention.hard.ms before the reader had them.",
        ("reader",),
    ),
    "cordwood_reader_position": Metric(
        "gauge", "Next offset of a registered reader.", ("reader", *TOPIC)
    ),
    "cordwood_reader_lag_records": Metric(
        "gauge", "Records that a registered reader has not passed.", ("reader", *TOPIC)
    ),
    "cordwood_reader_held_bytes": Metric(
        "gauge", "Bytes of segments that a registered reader has not passed.", ("reader", *TOPIC)
    ),
    "cordwood_group_lag_records": Metric(
        "gauge",
        "Records that a consumer group has not committed, summed over partitions.",
        ("group", "topic"),
    ),
    "cordwood_group_lag_records_max": Metric(
        "gauge",
        "Records that a consumer group has not committed in its furthest behind partition.",
        ("group", "topic"),
    ),
    "cordwood_group_lags_left_out": Metric(
        "gauge", "Pairs of group and topic that are not shown; only the 1,000 furthest behind are."
    ),
    "cordwood_topic_bytes": Metric(
        "gauge",
        "Bytes of a topic's segments, once all its partitions are open.",
        ("topic", "cleanup"),
    ),
    "cordwood_log_cleaner_compactions_total": Metric("counter", "Compaction passes.", TOPIC),
    "cordwood_log_cleaner_cleaned_bytes_total": Metric("counter", "Bytes compaction freed.", TOPIC),
    "cordwood_log_cleaner_dirty_ratio": Metric(
        "gauge", "Dirty share of the bytes that compaction may clean.", TOPIC
    ),
    "cordwood_log_cleaner_duration_seconds": Metric(
        "gauge", "Duration of the last compaction pass.", TOPIC
    ),
    "cordwood_log_cleaner_live_records": Metric(
        "gauge", "Records left by the last compaction pass.", TOPIC
    ),
    "cordwood_log_cleaner_keyless_records": Metric(
        "gauge",
        "Records without a key in the compacted part of the log; compaction keeps them.",
        TOPIC,
    ),
    "cordwood_log_cleaner_quarantined": Metric("gauge", "1 while compaction passes fail.", TOPIC),
    "cordwood_compressed_segments_total": Metric(
        "counter", "Sealed segments the broker compressed (compression.type).", ("topic",)
    ),
    "cordwood_compressed_bytes_before_total": Metric(
        "counter", "Bytes of those segments before.", ("topic",)
    ),
    "cordwood_compressed_bytes_after_total": Metric(
        "counter", "Bytes of those segments after; the difference is saved.", ("topic",)
    ),
    "cordwood_compression_kept_segments_total": Metric(
        "counter",
        "Sealed segments left as they are, because compression saves too little.",
        ("topic",),
    ),
    "cordwood_compression_failures_total": Metric(
        "counter", "Failed attempts to compress a sealed segment.", ("topic",)
    ),
    "cordwood_deliveries_total": Metric(
        "counter", "Batches of Spark queries that were appended completely."
    ),
    "cordwood_deliveries_known": Metric("gauge", "Spark queries whose last delivery is in memory."),
    "cordwood_deliveries_quarantined": Metric(
        "gauge", "Accepted deliveries that cannot be completed; each blocks its own query."
    ),
    "cordwood_delivery_cancelled_records_total": Metric(
        "counter", "Records of accepted deliveries whose topic was deleted before they were stored."
    ),
    "cordwood_delivery_discarded_records_total": Metric(
        "counter", "Records given up with a delivery that an operator discarded."
    ),
    "cordwood_pipeline_up": Metric("gauge", "1 while the embedded pipeline runs its jobs."),
    "cordwood_pipeline_wanted": Metric("gauge", "1 when the embedded pipeline should be up."),
    "cordwood_pipeline_restarts_total": Metric("counter", "Times the pipeline was restarted."),
    "cordwood_pipeline_job_up": Metric(
        "gauge", "1 while the job runs or if its last round succeeded.", ("name",)
    ),
    "cordwood_pipeline_job_failures_total": Metric("counter", "Times a job failed.", ("name",)),
    "cordwood_resident_memory_bytes": Metric("gauge", "Resident memory of the broker."),
}


def samples(broker: Broker) -> Iterator[Sample | None]:
    """Yield every sample of one scrape; None where a family has no sample yet."""
    yield from _process()
    yield from _writer(broker)
    yield from _ingress(broker)
    yield from _connections(broker)
    yield from _partitions(broker)
    yield from _monitor(broker)
    yield from _readers(broker)
    yield from _compaction(broker)
    yield from _compression(broker)
    yield from _deliveries(broker)
    yield from _health(broker)
    yield from _pipeline(broker)
    yield from _groups(broker)


def _process() -> Iterator[Sample]:
    from cordwood.version import __version__

    yield Sample("cordwood_info", 1, {"version": __version__})
    yield Sample("cordwood_kernels_loaded", int(kernels_ready()))
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - not one of our files
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
    yield Sample("cordwood_data_directory_lost", int(bool(broker.directory.problem)))


def _ingress(broker: Broker) -> Iterator[Sample]:
    stats = broker.ingress.stats
    for name in ("records", "duplicates", "rejected", "dropped", "blocked"):
        yield Sample(f"cordwood_ingress_{name}_total", getattr(stats, name))


def _connections(broker: Broker) -> Iterator[Sample]:
    for name, listener in list(broker.listeners.items()):
        labels = {"listener": name}
        yield Sample("cordwood_connections", len(listener.connections), labels)
        yield Sample("cordwood_connections_accepted_total", listener.accepted, labels)
        yield Sample("cordwood_connections_refused_total", listener.refused, labels)
        yield Sample("cordwood_connections_idle_closed_total", listener.timed_out, labels)
        for error, count in list(listener.foreign.items()):
            yield Sample("cordwood_connections_foreign_total", count, {**labels, "error": error})


def _partitions(broker: Broker) -> Iterator[Sample | None]:
    unopened = 0
    for topic, live in list(broker.store.topics.items()):
        for partition in live.held():
            if not partition.is_open:
                unopened += 1
                yield None
                continue
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
            bundles = broker.store.metadata.cluster.bundles(partition.tp)
            yield Sample("cordwood_archived_end_offset", bundles.end, labels)
            yield Sample("cordwood_archive_bundles", len(bundles.entries()), labels)
            yield Sample("cordwood_archive_verified_end_offset", bundles.verified_end, labels)
    yield Sample("cordwood_partitions_unopened", unopened)


def _health(broker: Broker) -> Iterator[Sample]:
    registry = broker.store.health
    for tp in registry.reasons(Condition.OFFLINE, Condition.READ_ONLY):
        yield Sample("cordwood_partition_offline", 1, _labels(tp))
    for condition in Condition:
        for tp in registry.reasons(condition):
            labels = {**_labels(tp), "condition": condition.value}
            yield Sample("cordwood_partition_problem", 1, labels)
    for tp, ranges in registry.damaged().items():
        yield Sample("cordwood_damaged_ranges", len(ranges), _labels(tp))
    for tp, ranges in registry.accepted().items():
        yield Sample("cordwood_accepted_damaged_ranges", len(ranges), _labels(tp))
    yield Sample("cordwood_damage_found_total", registry.damage_found)
    yield Sample("cordwood_scrubbed_segments_total", broker.scrub.stats.segments)
    yield Sample("cordwood_scrubbed_bytes_total", broker.scrub.stats.size_bytes)
    for task in list(broker.background.died):
        yield Sample("cordwood_background_tasks_died", 1, {"task": task})


def _labels(tp: TopicPartition) -> dict[str, str]:
    return {"topic": tp.topic, "partition": str(tp.partition)}


def _pipeline(broker: Broker) -> Iterator[Sample]:
    pipeline = broker.pipeline
    yield Sample("cordwood_pipeline_up", int(pipeline.state is PipelineState.UP))
    yield Sample("cordwood_pipeline_wanted", int(pipeline.is_wanted))
    yield Sample("cordwood_pipeline_restarts_total", pipeline.restarts)
    for job, count in list(pipeline.job_failures.items()):
        yield Sample("cordwood_pipeline_job_failures_total", count, {"name": job})
        yield Sample("cordwood_pipeline_job_up", int(pipeline.is_job_up(job)), {"name": job})


def _groups(broker: Broker) -> Iterator[Sample | None]:
    lags_of_cursors: list[GroupRow] = []
    for cursor in group_lags(broker.store):
        lags_of_cursors.append(cursor)
        yield None
    lags, left_out = furthest_behind(by_topic(lags_of_cursors), GROUP_LAGS_MAX)
    for lag in lags:
        labels = {"group": lag.group, "topic": lag.topic}
        yield Sample("cordwood_group_lag_records", lag.records, labels)
        yield Sample("cordwood_group_lag_records_max", lag.records_max, labels)
    yield Sample("cordwood_group_lags_left_out", left_out)


def _monitor(broker: Broker) -> Iterator[Sample]:
    stats = broker.monitor.stats
    for reason, count in list(stats.reclaims.items()):
        yield Sample("cordwood_reclaims_total", count, {"reason": reason})
    yield Sample("cordwood_reclaimed_bytes_total", stats.reclaimed_bytes)
    for reader, count in list(stats.lost_records.items()):
        yield Sample("cordwood_lost_records_total", count, {"reader": reader})


def _readers(broker: Broker) -> Iterator[Sample]:
    for row in broker.readers.rows(None):
        labels = {
            "reader": row.reader,
            "topic": row.topic,
            "partition": str(row.partition),
        }
        yield Sample("cordwood_reader_position", row.seq, labels)
        yield Sample("cordwood_reader_lag_records", row.lag, labels)
        yield Sample("cordwood_reader_held_bytes", row.held_bytes, labels)


def _deliveries(broker: Broker) -> Iterator[Sample]:
    stats = broker.deliveries.stats
    yield Sample("cordwood_deliveries_total", stats.delivered)
    yield Sample("cordwood_deliveries_known", broker.deliveries.known_count)
    yield Sample("cordwood_deliveries_quarantined", len(broker.deliveries.quarantined))
    yield Sample("cordwood_delivery_cancelled_records_total", stats.cancelled_records)
    yield Sample("cordwood_delivery_discarded_records_total", stats.discarded_records)


def _compression(broker: Broker) -> Iterator[Sample]:
    stats = broker.compression.stats
    counters = {
        "cordwood_compressed_segments_total": stats.segments,
        "cordwood_compressed_bytes_before_total": stats.bytes_before,
        "cordwood_compressed_bytes_after_total": stats.bytes_after,
        "cordwood_compression_kept_segments_total": stats.kept,
        "cordwood_compression_failures_total": stats.failures,
    }
    for name, counter in counters.items():
        for topic, count in list(counter.items()):
            yield Sample(name, count, {"topic": topic})


def _compaction(broker: Broker) -> Iterator[Sample | None]:
    for name, topic in list(broker.store.topics.items()):
        if not all(partition.is_open for partition in topic.held()):
            yield None  # its size is not known yet
            continue
        size_bytes = sum(partition.size_bytes for partition in topic.online())
        cleanup = ",".join(sorted(topic.config.cleanup_policy))
        yield Sample("cordwood_topic_bytes", size_bytes, {"topic": name, "cleanup": cleanup})
    for partition, inputs, plan in broker.compaction.looks():
        state = inputs.state
        labels = {"topic": partition.tp.topic, "partition": str(partition.tp.partition)}
        values = {
            "compactions_total": state.passes,
            "cleaned_bytes_total": state.freed_bytes,
            "dirty_ratio": plan.ratio,
            "duration_seconds": state.duration_ms / 1000,
            "live_records": state.live_records,
            "keyless_records": state.keyless_records,
            "quarantined": int(state.failures > 0),
        }
        for name, value in values.items():
            yield Sample(f"cordwood_log_cleaner_{name}", value, labels)
