"""``archive restore``: restore a topic and its cursors from an archive.

Records are restored in order and exactly once, even after a crash: every bundle is one delivery to
the broker, numbered by its position in the manifest, and a restore that is run again continues
where it stopped. The log assigns new offsets; each cursor moves to the record it pointed at.
Records of aborted transactions and transaction markers are not restored.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.columns import Columns
from cordwood.batch.header import parse_headers
from cordwood.batch.records import parse_marker
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.client.topic_archive import TopicArchive
from cordwood.config import KEEP_ALL
from cordwood.decide.archive import Entry, TransactionEnd, aborted_spans
from cordwood.errors import CorruptionError, StaleDelivery, TopicExists
from cordwood.log.format.bundle import proving, read_batches
from cordwood.model import Aborted, TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.probe import not_shared
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter, name_job
from cordwood.pipeline.runtime.targets import Targets
from cordwood.pipeline.runtime.tasks import Watch, run_tasks
from cordwood.plural import plural
from cordwood.protocol.api.deliveries import Deliver, DeliveryPart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE: Final = 8  # bundles staged in one Spark job, then delivered


class Restored(NamedTuple):
    """The result of a restore."""

    topic: str
    records: int
    cursors: dict[int, dict[str, int]]  # partition → reader → offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTask:
    """One bundle to restore; small and picklable."""

    place: str
    home: str
    entry: Entry
    to: str
    at_ms: int
    aborted: tuple[Aborted, ...]
    marks: tuple[int, ...]  # cursor offsets to translate to new offsets
    staging: StagingTarget
    targets: Targets
    job: str
    is_staged: bool  # False if an earlier run delivered it and only ``marks`` are counted


class RestoredPart(NamedTuple):
    """The result of one task: the staged parts and the record counts."""

    job: str
    parts: tuple[DeliveryPart, ...]
    records: int
    below: dict[int, int]  # mark → records of this bundle below it


def restore_archive(
    spark: SparkSession,
    api: BrokerApi,
    topic_archive: TopicArchive,
    *,
    to: str,
    at_ms: int | None,
    watch: Watch | None = None,
) -> Restored:
    """Restore a topic archive as topic ``to``, as of ``at_ms``; ``watch`` gets byte counts."""
    until_ms = KEEP_ALL if at_ms is None else at_ms
    entries = [entry for entry in topic_archive.entries() if entry.first_ms <= until_ms]
    _check_bundles(topic_archive, entries)
    targets = _prepare_topic(api, to, entries)
    query = _query(entries, targets.get(to).id, until_ms)
    next_batch = api.next_batch(query)
    if next_batch == 0:
        _check_empty(api, to)
    staging = StagingTarget.of(api)
    cursors = _cursors(entries, at_ms)
    tasks = [
        RestoreTask(
            place=topic_archive.storage.place,
            home=topic_archive.home,
            entry=entry,
            to=to,
            at_ms=until_ms,
            aborted=aborted,
            marks=tuple(sorted({*cursors[entry.partition].values()})),
            staging=staging,
            targets=targets,
            job=name_job(query, number),
            is_staged=number >= next_batch,
        )
        for number, (entry, aborted) in enumerate(_with_aborted(spark, topic_archive, entries))
    ]
    staged: list[RestoredPart] = []
    sizes = [entry.size_bytes for entry in entries]
    for start in range(0, len(tasks), WAVE):
        if watch is not None:
            watch(sum(sizes[:start]), sum(sizes))
        label = (
            f"restore to {to}: bundles {start} to {min(start + WAVE, len(tasks))} of {len(tasks)}"
        )
        wave = run_tasks(spark, restore_task, tasks[start : start + WAVE], label=label)
        for number, each in enumerate(wave, start):
            if tasks[number].is_staged:
                api.deliver(Deliver(query, number, each.job, each.parts))
        staged += wave
    _check_delivered(api, to, entries, staged)
    moved = _move_cursors(api, to, entries, staged, cursors)
    return Restored(to, sum(each.records for each in staged), moved)


def _query(entries: Sequence[Entry], topic_id: str, until_ms: int) -> str:
    """Name the restore after its input, so that the same restore into a topic is not done twice.

    The name includes the topic id: a topic that was deleted and created again is a different one.
    """
    links = "".join(entry.link for entry in entries)
    name = hashlib.sha256(f"{links} {topic_id} {until_ms}".encode()).hexdigest()
    return f"restore-{name[:16]}"


def _check_bundles(topic_archive: TopicArchive, entries: Sequence[Entry]) -> None:
    """Verify every bundle before anything is restored; raises ``CorruptionError``."""
    for entry in entries:
        if findings := topic_archive.check(entry):
            first = findings[0]
            raise CorruptionError(f"{first.where} is {first.problem}: {first.detail}")


def _prepare_topic(api: BrokerApi, to: str, entries: Sequence[Entry]) -> Targets:
    """Create the topic to restore to if it does not exist; returns what tasks need to stage."""
    if to not in api.targets():
        partitions = max((entry.partition for entry in entries), default=0) + 1
        where = api.where
        with KafkaClient(where.servers or "", tls=where.tls) as client:
            # Old records must not expire at once.
            client.create_topic(to, partitions, {"retention.ms": "-1"})
    return Targets(known={to: api.targets()[to]})


def _check_empty(api: BrokerApi, to: str) -> None:
    """Refuse to start a new restore into a topic that has records."""
    if any(part.high_watermark for part in api.topic(to).partitions):
        raise TopicExists(
            f"topic {to} already has records; restore to another topic with --to, or delete it "
            "first"
        )


def _cursors(entries: Sequence[Entry], at_ms: int | None) -> dict[int, dict[str, int]]:
    """Return each partition's cursors, from its newest entry archived by ``at_ms``.

    If all entries are newer, the oldest one is used.
    """
    cursors: dict[int, dict[str, int]] = {}
    for entry in entries:
        archived_ms = dt.datetime.fromisoformat(entry.archived).timestamp() * 1000
        if at_ms is None or archived_ms <= at_ms or entry.partition not in cursors:
            cursors[entry.partition] = dict(entry.cursors)
    return cursors


def _with_aborted(
    spark: SparkSession, topic_archive: TopicArchive, entries: Sequence[Entry]
) -> list[tuple[Entry, tuple[Aborted, ...]]]:
    """Return each entry with the aborted transactions of its partition."""
    read = [entry for entry in entries if entry.transactional]
    tasks = [(topic_archive.storage.place, topic_archive.home, entry) for entry in read]
    ends: dict[int, list[TransactionEnd]] = {}
    label = "restore: find ends of transactions"
    for entry, markers in zip(read, run_tasks(spark, ends_task, tasks, label=label), strict=True):
        ends.setdefault(entry.partition, []).extend(markers)
    aborted = {partition: tuple(aborted_spans(each)) for partition, each in ends.items()}
    return [(entry, aborted.get(entry.partition, ())) for entry in entries]


def _check_delivered(
    api: BrokerApi, to: str, entries: Sequence[Entry], staged: Sequence[RestoredPart]
) -> None:
    """Check that the topic holds as many records as were restored; raises ``StaleDelivery``."""
    ends = {part.partition: part.high_watermark for part in api.topic(to).partitions}
    wanted: Counter[int] = Counter()
    for entry, each in zip(entries, staged, strict=True):
        wanted[entry.partition] += each.records
    for partition, records in wanted.items():
        if ends.get(partition, 0) < records:
            raise StaleDelivery(
                f"topic {to} holds {ends.get(partition, 0)} of {plural(records, 'record')} in "
                f"partition "
                f"{partition}: it may have been deleted during the restore. Delete it and run the "
                "command again"
            )


def _move_cursors(
    api: BrokerApi,
    to: str,
    entries: Sequence[Entry],
    staged: Sequence[RestoredPart],
    cursors: dict[int, dict[str, int]],
) -> dict[int, dict[str, int]]:
    """Move each cursor past as many restored records as it had passed; returns the new offsets."""
    moved: dict[int, dict[str, int]] = {}
    for partition, readers in cursors.items():
        for reader, offset in readers.items():
            passed = sum(
                each.below[offset]
                for entry, each in zip(entries, staged, strict=True)
                if entry.partition == partition
            )
            moved.setdefault(partition, {})[reader] = passed
            api.reset(to, partition, reader, passed)
    return moved


# --- on an executor -------------------------------------------------------------------------


def ends_task(task: tuple[str, str, Entry]) -> list[TransactionEnd]:
    """Read the transaction markers of one bundle."""
    place, home, entry = task
    ends = []
    for data in _batches(place, home, entry):
        position = 0
        for header in parse_headers(data):
            marker = parse_marker(data, position) if header.is_control else None
            if marker is not None:
                ends.append(
                    TransactionEnd(header.base_offset, header.producer_id, marker.is_commit)
                )
            position += header.size_bytes
    return ends


def restore_task(task: RestoreTask) -> RestoredPart:
    """Stage one bundle's records, and count those below each mark."""
    records = 0
    below = dict.fromkeys(task.marks, 0)
    with StagingWriter(task.staging, task.job, task.targets) as writer:
        for columns in _columns(task):
            records += len(columns)
            for mark in task.marks:
                below[mark] += int((columns.offsets < mark).sum())
            if task.is_staged and len(columns):
                writer.add(task.to, task.entry.partition, columns)
        parts = tuple(writer.flush())
    return RestoredPart(task.job, parts, records, below)


def _columns(task: RestoreTask) -> Iterator[Columns]:
    for data in _batches(task.place, task.home, task.entry):
        columns = decode_columns(data, aborted=task.aborted)
        assert columns.timestamps_ms is not None, "every column was wanted"
        yield columns.chosen(columns.timestamps_ms <= task.at_ms)


def _batches(place: str, home: str, entry: Entry) -> Iterator[bytes]:
    """Yield the bundle's batches; raises at the end if its sha256 is not the manifest's."""
    topic_archive = TopicArchive(open_storage(place), home)
    tp = TopicPartition(entry.topic, entry.partition)
    try:
        file = topic_archive.open(entry.bundle, entry.sha256)
    except (FileNotFoundError, NotADirectoryError):
        raise not_shared(place, "--dest", f"does not see {home}/{entry.bundle}") from None
    with file, proving(file, entry.bundle, entry.sha256) as bundle:
        yield from read_batches(bundle, tp, entry.span)
