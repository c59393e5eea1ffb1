"""The driver's memory use in audit and archive does not grow with the number of batches."""

from __future__ import annotations

import pytest

from cordwood.batch.records import encode_batch
from cordwood.decide.archive import Span
from cordwood.model import TopicPartition
from cordwood.pipeline.archive.header_runs import cut_bundles, scanned
from cordwood.pipeline.audit.job import AuditTask as Walk
from cordwood.pipeline.audit.job import walk_summary
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import parse_options
from support.datadir import HandMade, records

pytestmark = pytest.mark.spark
TP = TopicPartition("t", 0)


@pytest.fixture
def log(data):
    made = HandMade(data, TP)
    yield made
    made.close()


def fill(log, batches):
    """Append batches of one record; the last repeats the first sequence number."""
    for at in range(batches):
        sequence = 0 if at == batches - 1 else at
        log.append(
            encode_batch(
                records(at, at + 1), producer_id=7, producer_epoch=0, base_sequence=sequence
            )
        )
    log.publish()
    options = {"subscribe": "t", "path": str(log.directory.parent)}
    return parse_options(options, streaming=False)


def test_an_audit_s_driver_is_given_a_row_per_task_and_one_per_partition(spark, log):
    """The driver gets one row per task and partition; executors detect repeated sequences."""
    options = fill(log, 300)
    halves = [Walk(0, options, Range(TP, 0, 150)), Walk(0, options, Range(TP, 150, 300))]
    few = walk_summary(spark, [Walk(0, options, Range(TP, 0, 10))]).collect()
    assert len(few) == 2
    rows = walk_summary(spark, halves).collect()
    assert len(rows) == 3
    assert [row["again"] for row in rows if row["start"] is None] == [1]
    assert sum(row["piece"]["records"] for row in rows if row["piece"]) == 300


def tasks_run(spark):
    """Return how many tasks Spark has completed in all jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return sum(jobs.apply(at).numCompletedTasks() for at in range(jobs.size()))


def test_an_archive_s_driver_asks_for_one_range_at_a_time(spark, log):
    """The driver fetches a range's batches only after it has used those of the previous range."""
    options = fill(log, 30)
    ranges = [Range(TP, start, start + 10) for start in (0, 10, 20)]
    with scanned(spark, options, ranges) as stream:
        wait_for_listeners(spark)
        before = tasks_run(spark)
        runs = stream()
        fetched = []
        for at, (_, run) in enumerate(runs):
            assert run.base_offset == at
            if at % 10 == 0:
                wait_for_listeners(spark)
                fetched.append(tasks_run(spark) - before)
    assert fetched == [1, 2, 3]


def wait_for_listeners(spark):
    """Wait until Spark's status store has processed all events."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def test_an_archive_s_driver_takes_batches_from_the_executors_in_order(spark, log):
    """Batches arrive in offset order, each once, and are cut into bundles of 15 records."""
    options = fill(log, 50)
    with scanned(spark, options, [Range(TP, 0, 20), Range(TP, 20, 50)]) as stream:
        assert [run.base_offset for _, run in stream()] == list(range(50))
        spans = cut_bundles(stream(), [(TP, Span(0, 50))], records_max=15, bytes_max=1 << 30)
    assert spans[TP] == [Span(0, 15), Span(15, 30), Span(30, 45), Span(45, 50)]
