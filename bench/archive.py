"""Measures archive and restore on Spark: records per second, CPU and peak memory.

The log is that of ``compaction``, with values of 100 bytes and its own broker.
``CORDWOOD_BENCH_ARCHIVE`` sets how many records it has. Archiving includes reading every bundle
back; restoring includes the checks before it and the broker's appends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.compaction import STEP, Watch, embedded_spark, fill
from bench.rows import Row
from cordwood.lab.scenarios.stage import Child

RECORDS = int(os.environ.get("CORDWOOD_BENCH_ARCHIVE", "3000000"))
BUNDLE_BYTES = 32 << 20  # enough bundles for two cores


def run() -> Iterator[Row]:
    with embedded_spark() as spark:
        measure(spark, STEP, lines=True)  # workers load what they need
        yield from measure(spark, RECORDS, lines=True)
        yield from measure(spark, RECORDS, lines=False)


def measure(spark: Any, records: int, *, lines: bool) -> list[Row]:
    """Archive and restore one topic."""
    from cordwood.client.storage import open_storage
    from cordwood.client.topic_archive import list_topic_archives
    from cordwood.pipeline.archive import ArchiveRequest, create_archive, restore_archive
    from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi

    work = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    variant = "with lines" if lines else "without lines"
    request = ArchiveRequest(topic="bench", bundle_bytes=BUNDLE_BYTES, lines=lines)
    try:
        fill(work / "data", records)
        storage = open_storage(str(work / "archive"))
        broker = Child(work / "data", {"durability": "os"})
        where = BrokerAddress(broker.addresses["kafka"])
        try:
            with closing(BrokerApi(where)) as api:
                create = lambda: create_archive(spark, api, storage, request)  # noqa: E731
                rows = [timed("archive", variant, broker, create, records)]
                size_bytes = sum(
                    entry.size_bytes for entry in list_topic_archives(storage)[0].entries()
                )
                topic_archive = list_topic_archives(storage)[0]
                restore = lambda: restore_archive(  # noqa: E731
                    spark, api, topic_archive, to="back", at_ms=None
                )
                rows.append(timed("restore", variant, broker, restore, records))
        finally:
            broker.stop()
    finally:
        shutil.rmtree(work)
    return [row._replace(note=f"bundles {size_bytes >> 20} MiB, {row.note}") for row in rows]


def timed(workload: str, variant: str, broker: Child, job: Callable[[], Any], records: int) -> Row:
    """Run one job and return it as a row."""
    with Watch(broker) as watch:
        job()
    note = f"{watch.seconds:.1f} s, {watch.cpu_seconds:.1f} CPU s; peak MiB {watch.peaks()}"
    return Row(workload, variant, records / watch.seconds, "records/s", note)
