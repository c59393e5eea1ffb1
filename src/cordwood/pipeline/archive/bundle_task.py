"""The Spark task that writes one bundle: read the log, write to ``incoming``, read it back.

The driver and the broker do not trust a task's report; each reads the bundle again.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from cordwood.client.storage import naming, open_storage
from cordwood.client.topic_archive import TopicArchive, parquet_name, put_proved
from cordwood.decide.archive import Span, bundle_name
from cordwood.errors import CorruptionError
from cordwood.log.format.bundle import count_records, proving
from cordwood.log.format.bundle_writer import BundleStats, write_bundle
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.probe import Probe
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.plural import plural


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

    stats: BundleStats
    parquet_sha256: str | None


def write_task(task: BundleTask) -> WrittenBundle:
    """Write one bundle to ``incoming`` and read it back from there."""
    task.probe.check()
    storage = open_storage(task.place)
    topic_archive = TopicArchive(storage, task.home)
    name = bundle_name(task.tp.partition, task.span)
    with tempfile.TemporaryFile() as file:
        with naming(Path(tempfile.gettempdir())), open_log(task.options) as log:
            chunks = (chunk.data for chunk in log.chunks(Range(task.tp, *task.span), None))
            stats = write_bundle(file, task.tp, task.span, chunks, lines=task.lines)
        file.seek(0)
        storage.put(topic_archive.incoming(name, stats.sha256), file)
    with (
        closing(storage.open(topic_archive.incoming(name, stats.sha256))) as written,
        proving(written, name, stats.sha256) as bundle,
    ):
        records = count_records(bundle, task.tp, task.span)
    if records != stats.records:
        raise CorruptionError(
            f"{name} holds {plural(records, 'record')}, but {stats.records} were written"
        )
    return WrittenBundle(stats, _write_parquet(task, topic_archive, name) if task.parquet else None)


def _write_parquet(task: BundleTask, topic_archive: TopicArchive, bundle: str) -> str:
    """Write the same records as a Parquet file beside the bundle; returns its sha256."""
    name = parquet_name(bundle)
    with tempfile.TemporaryFile() as file:
        _write_rows(file, task)
        return put_proved(topic_archive.storage, file, partial(topic_archive.incoming, name))


def _write_rows(file: IO[bytes], task: BundleTask) -> None:
    import pyarrow.parquet as pq

    from cordwood.batch.arrow import SPARK_COLUMNS, arrow_batches, arrow_schema
    from cordwood.batch.column_decoder import decode_columns

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
