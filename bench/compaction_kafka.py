"""Compares our compaction with Apache Kafka's cleaner on the same segment files.

Logs are filled through our store, and their files are copied into directories of Kafka topics,
because both use the same layout. Both are warmed up with a log of a million records. Kafka's time
is what its cleaner reports for the pass, with two threads and all other settings at Kafka's
defaults; ours is the whole job on Spark, including orders, verification and swap. Afterwards both
logs must hold the same offsets. Kafka cleans a log with one thread, we use all cores.
``CORDWOOD_BENCH_COMPACTION_KAFKA`` sets the sizes.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.compaction import compact, embedded_spark, fill
from bench.peers import provide
from bench.peers.contestants import Kafka, Level, Server
from bench.peers.provide import Missing
from bench.rows import Row
from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.header_table import Longs

SIZES = [
    int(size)
    for size in os.environ.get(
        "CORDWOOD_BENCH_COMPACTION_KAFKA", "1000000,10000000,30000000"
    ).split(",")
]
WARM_RECORDS = 1_000_000
CLEANED_S = 300.0
EAGER, NEVER = "0.01", "1.0"  # min.cleanable.dirty.ratio: logs above it are cleaned
THREADS = 2


def run() -> Iterator[Row]:
    try:
        provide.kafka_jars()
    except Missing as error:
        print(f"compaction_kafka: SKIPPED, Apache Kafka cannot be had here: {error}")
        return
    work = Path(tempfile.mkdtemp(prefix="cordwood-bench-"))
    logs = {"warm": WARM_RECORDS} | {f"bench{size}": size for size in SIZES}
    try:
        for name, records in logs.items():
            fill(work / name, records)
        theirs = clean_with_kafka(work, list(logs))
        with embedded_spark() as spark:
            compact(spark, work / "warm", "warm")
            for name, records in list(logs.items())[1:]:
                ours = compact(spark, work / name, "cordwood")
                yield from compared(
                    records, ours, theirs[name], offsets_in(work / name / "bench-0")
                )
    finally:
        shutil.rmtree(work)


class Cleaned(NamedTuple):
    """The result of Kafka's cleaner for a log."""

    seconds: float
    offsets: Longs


def compared(records: int, ours: Row, theirs: Cleaned, left: Longs) -> Iterator[Row]:
    """Yield both rates and their ratio; both must have kept the same offsets."""
    if not np.array_equal(left, theirs.offsets):
        raise AssertionError("the two cleaners left different records")
    workload = f"compaction, same log of {records / 1e6:g} M"
    note = f"{records:,} records, {len(left):,} left on both sides"
    yield ours._replace(workload=workload)
    rate = records / theirs.seconds
    remark = f"{note}, {theirs.seconds:.1f} s as it says itself, {THREADS} cleaner threads"
    yield Row(workload, f"Apache Kafka {Kafka.version()}", rate, "records/s", remark)
    yield Row(workload, "cordwood / Kafka", ours.value / rate, "times", note)


class CleaningKafka(Kafka):
    """A Kafka that cleans logs as soon as possible and logs it."""

    def properties(self, port: int, controller_port: int) -> str:
        rows = {
            "log.cleaner.threads": str(THREADS),
            "log.cleaner.backoff.ms": "100",
            "log.cleaner.min.cleanable.ratio": NEVER,
        }
        more = "".join(f"{name}={value}\n" for name, value in rows.items())
        return super().properties(port, controller_port) + more

    def java(self, *arguments: str) -> list[str]:
        """Add a log configuration; without one, Kafka logs nothing."""
        settings = self.sandbox.path / "log4j.properties"
        settings.write_text(
            "log4j.rootLogger=WARN, out\n"
            "log4j.logger.kafka.log.LogCleaner=INFO\n"
            "log4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=%m%n\n"
        )
        jars = [str(jar) for jar in provide.kafka_jars().glob("*.jar") if "-nop-" not in jar.name]
        words = ["-cp", ":".join(jars), f"-Dlog4j.configuration=file:{settings}"]
        return [provide.java(), *words, *arguments]

    def create(self, topics: Sequence[str]) -> None:
        from confluent_kafka.admin import NewTopic

        made = [NewTopic(name, 1, 1, config={"cleanup.policy": "compact"}) for name in topics]
        admin = self._admin()
        for done in admin.create_topics(made).values():
            done.result()

    def clean(self, topic: str) -> float:
        """Allow Kafka to clean the topic, and return the seconds of its one pass."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        name = "min.cleanable.dirty.ratio"
        entry = ConfigEntry(name, EAGER, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin = self._admin()
        for done in admin.incremental_alter_configs([resource]).values():
            done.result()
        return self._cleaned_s(f"{topic}-0")

    def _cleaned_s(self, partition: str) -> float:
        report = re.compile(
            rf"cleaned log {partition} .*?\n.*?log processed in ([\d.,]+) seconds", re.DOTALL
        )
        deadline = time.monotonic() + CLEANED_S
        while not (
            found := report.search((self.sandbox.path / "output").read_text(errors="replace"))
        ):
            if time.monotonic() > deadline or self.sandbox.processes[-1].poll() is not None:
                raise Missing(f"it did not clean {partition}: {self.sandbox.last_output()}")
            time.sleep(0.1)
        return float(found[1].replace(",", ""))

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": "{}:{}".format(*self.sandbox.addresses["kafka"])})

    def shut_down(self) -> None:
        """Stop Kafka cleanly, so that it loads the copied files unchanged."""
        for process in self.sandbox.processes:
            process.terminate()
            process.wait()
        self.sandbox.processes.clear()


def clean_with_kafka(work: Path, names: Sequence[str]) -> dict[str, Cleaned]:
    """Clean each log once, one after another; the first warms Kafka up."""
    with Server(CleaningKafka, Level.CACHED) as server:
        kafka, directory = server.contestant, server.sandbox.path / "data"
        kafka.create(names)
        kafka.shut_down()
        for name in names:
            take_over(work / name / "bench-0", directory / f"{name}-0")
        server.start()
        return {
            name: Cleaned(kafka.clean(name), offsets_in(directory / f"{name}-0")) for name in names
        }


def take_over(source: Path, target: Path) -> None:
    """Replace a topic's empty segment by ours; its identity stays."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.suffix in {".log", ".index", ".timeindex"}:
            shutil.copy(path, target)


def offsets_in(directory: Path) -> Longs:
    """Return every offset that holds a record."""
    found = [np.empty(0, np.int64)]
    for path in sorted(directory.glob("*.log")):
        columns = decode_columns(path.read_bytes(), wanted=frozenset({"offset"}))
        found.append(columns.offsets)
    return np.concatenate(found)
