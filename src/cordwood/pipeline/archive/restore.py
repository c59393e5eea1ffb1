"""``archive restore``: an archive's records become a topic again, with the cursors they had.

Records come back in order, each once, whatever dies: every bundle is one delivery through the
broker's gate, numbered by its place in the manifest, and a restore that is run again goes on where
it stopped. Offsets are new, as the log gives them; each cursor is moved to the record it stood at.
What transactions gave up does not come back, nor do their markers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cordwood.batch.columns import Columns, decode_columns
from cordwood.batch.header import parse_headers
from cordwood.batch.records import parse_marker
from cordwood.client.kafka import KafkaClient
from cordwood.client.storage import open_storage
from cordwood.config import KEEP_ALL
from cordwood.decide.archive import Entry, TransactionEnd, aborted_spans
from cordwood.errors import CorruptionError, StaleDelivery, TopicExists
from cordwood.log.format.bundle import proving, read_batches
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.topic_archive import TopicArchive
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, Part
from cordwood.pipeline.runtime.job_labels import job
from cordwood.pipeline.runtime.probe import not_shared
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter
from cordwood.pipeline.runtime.tasks import Watch, run_tasks
from cordwood.pipeline.sink.targets import Targets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE: Final = 8  # bundles staged before they are delivered

Aborted = tuple[int, int, int]


class Restored(NamedTuple):
    """What came of it."""

    topic: str
    records: int
    cursors: dict[int, dict[str, int]]  # partition → reader → offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTask:
    """One bundle to bring back; small and picklable."""

    place: str
    home: str
    entry: Entry
    to: str
    at_ms: int
    aborted: tuple[Aborted, ...]
    marks: tuple[int, ...]  # offsets whose new ones are wanted
    staging: StagingTarget
    targets: Targets
    job: str
    is_staged: bool  # False when it was delivered before, and only the marks are wanted


class RestoredPart(NamedTuple):
    """What a task staged."""

    job: str
    parts: list[Part]
    records: int
    below: dict[int, int]  # mark → records of this bundle below it


def restore_archive(
    spark: SparkSession,
    api: BrokerApi,
    where: BrokerAddress,
    topic_archive: TopicArchive,
    *,
    to: str,
    at_ms: int | None,
    watch: Watch | None = None,
) -> Restored:
    """Bring a topic archive back as topic ``to``, as of ``at_ms``; ``watch`` is told of bytes."""
    until_ms = KEEP_ALL if at_ms is None else at_ms
    entries = [entry for entry in topic_archive.entries() if entry.first_ms <= until_ms]
    _check_bundles(topic_archive, entries)
    targets = _prepare_topic(api, where, to, entries)
    query = _query(entries, targets.get(to).id, until_ms)
    done = api.last_batch(query)
    if done is None:
        _check_empty(api, to)
    staging = StagingTarget.of(api, where)
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
            job=f"{query}.{number}.{secrets.token_hex(4)}",
            is_staged=done is None or number > done,
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
                api.deliver(query, number, each.job, each.parts, [])
        staged += wave
    _check_delivered(api, to, entries, staged)
    moved = _move_cursors(api, to, entries, staged, cursors)
    return Restored(to, sum(each.records for each in staged), moved)


def _query(entries: Sequence[Entry], topic_id: str, until_ms: int) -> str:
    """The same restore into the same topic has the same name, so that it is not done twice.

    A topic that was deleted and created again is another one, whatever its name.
    """
    links = "".join(entry.link for entry in entries)
    name = hashlib.sha256(f"{links} {topic_id} {until_ms}".encode()).hexdigest()
    return f"restore-{name[:16]}"


def _check_bundles(topic_archive: TopicArchive, entries: Sequence[Entry]) -> None:
    """Nothing comes back from an archive that does not hold."""
    for entry in entries:
        if findings := topic_archive.check(entry):
            first = findings[0]
            raise CorruptionError(f"{first.where} is {first.problem}: {first.detail}")


def _prepare_topic(
    api: BrokerApi, where: BrokerAddress, to: str, entries: Sequence[Entry]
) -> Targets:
    """The topic to restore to, created if need be; what tasks must know of it."""
    if to not in api.targets():
        partitions = max((entry.partition for entry in entries), default=0) + 1
        with KafkaClient(where.servers or "") as client:  # old records must not expire at once
            client.create_topic(to, partitions, {"retention.ms": "-1"})
    return Targets(known={to: api.targets()[to]})


def _check_empty(api: BrokerApi, to: str) -> None:
    """A restore that is begun goes on; a new one begins in an empty topic."""
    if any(part["high_watermark"] for part in api.topic(to)["partitions"]):
        raise TopicExists(
            f"topic {to} has records already; restore to another one with --to, or delete it first"
        )


def _cursors(entries: Sequence[Entry], at_ms: int | None) -> dict[int, dict[str, int]]:
    """Each partition's cursors as its newest entry has them."""
    found: dict[int, dict[str, int]] = {}
    for entry in entries:
        archived_ms = dt.datetime.fromisoformat(entry.archived).timestamp() * 1000
        if at_ms is None or archived_ms <= at_ms or entry.partition not in found:
            found[entry.partition] = dict(entry.cursors)
    return found


@job("restore: look for ends of transactions")
def _with_aborted(
    spark: SparkSession, topic_archive: TopicArchive, entries: Sequence[Entry]
) -> list[tuple[Entry, tuple[Aborted, ...]]]:
    """Each entry with what transactions of its partition gave up."""
    looked = [entry for entry in entries if entry.transactional]
    looks = [(topic_archive.storage.place, topic_archive.home, entry) for entry in looked]
    ends: dict[int, list[TransactionEnd]] = {}
    for entry, found in zip(looked, run_tasks(spark, ends_task, looks), strict=True):
        ends.setdefault(entry.partition, []).extend(found)
    aborted = {partition: tuple(aborted_spans(each)) for partition, each in ends.items()}
    return [(entry, aborted.get(entry.partition, ())) for entry in entries]


def _check_delivered(
    api: BrokerApi, to: str, entries: Sequence[Entry], staged: Sequence[RestoredPart]
) -> None:
    """What is reported as restored is in the topic."""
    ends = {part["partition"]: part["high_watermark"] for part in api.topic(to)["partitions"]}
    wanted: Counter[int] = Counter()
    for entry, each in zip(entries, staged, strict=True):
        wanted[entry.partition] += each.records
    for partition, records in wanted.items():
        if ends.get(partition, 0) < records:
            raise StaleDelivery(
                f"topic {to} holds {ends.get(partition, 0)} of {records} records in partition "
                f"{partition}: was it deleted while it was restored? Delete it and run this again"
            )


def _move_cursors(
    api: BrokerApi,
    to: str,
    entries: Sequence[Entry],
    staged: Sequence[RestoredPart],
    cursors: dict[int, dict[str, int]],
) -> dict[int, dict[str, int]]:
    """A cursor stands behind as many restored records as it had passed."""
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
    """The markers of one bundle."""
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
    """Stage one bundle's records."""
    records = 0
    below = dict.fromkeys(task.marks, 0)
    with StagingWriter(task.staging, task.job, task.targets) as outbox:
        for columns in _columns(task):
            records += len(columns)
            for mark in task.marks:
                below[mark] += int((columns.offsets < mark).sum())
            if task.is_staged and len(columns):
                outbox.add(task.to, task.entry.partition, _renumbered(columns))
        parts = list(outbox.flush())
    return RestoredPart(task.job, parts, records, below)


def _columns(task: RestoreTask) -> Iterator[Columns]:
    for data in _batches(task.place, task.home, task.entry):
        columns = decode_columns(data, aborted=task.aborted)
        assert columns.timestamps_ms is not None, "every column was wanted"
        yield columns.chosen(columns.timestamps_ms <= task.at_ms)


def _batches(place: str, home: str, entry: Entry) -> Iterator[bytes]:
    """The bundle's batches; raises in the end if it is not the one the driver checked."""
    topic_archive = TopicArchive(open_storage(place), home)
    tp = TopicPartition(entry.topic, entry.partition)
    try:
        file = topic_archive.open(entry.bundle, entry.sha256)
    except (FileNotFoundError, NotADirectoryError):
        raise not_shared(place, "--dest", f"does not see {home}/{entry.bundle}") from None
    with file, proving(file, entry.bundle, entry.sha256) as bundle:
        yield from read_batches(bundle, tp, entry.span)


def _renumbered(columns: Columns) -> Columns:
    """Offsets that run on; the log gives the real ones."""
    return replace(columns, offsets=np.arange(len(columns), dtype=np.int64))
