"""The Spark task that writes one bundle: read the log, write to ``incoming``, read it back.

The driver and the broker do not trust a task's report; each reads the bundle again.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from cordwood.client.storage import naming, open_storage
from cordwood.decide.archive import Span, bundle_name
from cordwood.errors import CorruptionError
from cordwood.log.format.bundle import count_records, digest, proving
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.bundle_writer import BundleStats, write_bundle
from cordwood.pipeline.archive.topic_archive import TopicArchive, parquet_name
from cordwood.pipeline.runtime.probe import Probe
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions


@dataclass(frozen=True, slots=True)
class BundleTask:
    """One bundle to write; small and picklable."""

    options: SourceOptions
    place: str
    home: str
    tp: TopicPartition
    span: Span
    lines: bool
    parquet: bool
    probe: Probe
    planned: tuple[int, int]  # minimum and maximum number of records


class WrittenBundle(NamedTuple):
    """A bundle that a task wrote and read back."""

    facts: BundleStats
    parquet_sha256: str | None


def write_task(task: BundleTask) -> WrittenBundle:
    """Write one bundle to ``incoming`` and read it back from there."""
    task.probe.check()
    storage = open_storage(task.place)
    topic_archive = TopicArchive(storage, task.home)
    name = bundle_name(task.tp.partition, task.span)
    with tempfile.TemporaryFile() as file:
        with naming(Path(tempfile.gettempdir())), open_log(task.options) as log:
            chunks = log.chunks(Range(task.tp, *task.span), None)
            facts = write_bundle(file, task.tp, task.span, chunks, lines=task.lines)
        file.seek(0)
        storage.put(topic_archive.incoming(name, facts.sha256), file)
    with (
        closing(storage.open(topic_archive.incoming(name, facts.sha256))) as written,
        proving(written, name, facts.sha256) as bundle,
    ):
        records = count_records(bundle, task.tp, task.span)
    if records != facts.records:
        raise CorruptionError(f"{name} holds {records} records, and {facts.records} were written")
    return WrittenBundle(facts, _write_parquet(task, topic_archive, name) if task.parquet else None)


def _write_parquet(task: BundleTask, topic_archive: TopicArchive, bundle: str) -> str:
    """Write the same records as a Parquet file beside the bundle; returns its sha256."""
    name = parquet_name(bundle)
    with tempfile.TemporaryFile() as file:
        _write_rows(file, task)
        file.seek(0)
        sha256 = digest(file)
        file.seek(0)
        topic_archive.storage.put(topic_archive.incoming(name, sha256), file)
    with (
        closing(topic_archive.storage.open(topic_archive.incoming(name, sha256))) as written,
        proving(written, name, sha256),
    ):
        return sha256


def _write_rows(file: IO[bytes], task: BundleTask) -> None:
    import pyarrow.parquet as pq

    from cordwood.batch.arrow import SPARK_COLUMNS, arrow_batches, arrow_schema
    from cordwood.batch.columns import decode_columns

    with (
        pq.ParquetWriter(file, arrow_schema(SPARK_COLUMNS), compression="zstd") as writer,
        open_log(task.options) as log,
    ):
        for chunk in log.chunks(Range(task.tp, *task.span), None):
            columns = decode_columns(
                chunk.data,
                start_offset=max(chunk.start_offset, task.span.start),
                end_offset=task.span.end,
            )
            for batch in arrow_batches(columns, *task.tp, SPARK_COLUMNS):
                writer.write_batch(batch)
