"""Many independent pieces of work as Spark tasks, one each: plain values in, plain values out.

For jobs whose work is files rather than rows. Runs on any session, Spark Connect included. An error
of ours that a task meets comes back as itself, not wrapped in Spark's. Unless the session says that
somebody waits (``priority``), tasks leave the cores to others.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cordwood.errors import CordwoodError, UnavailableError
from cordwood.pipeline.runtime import priority
from cordwood.pipeline.runtime.failure_reasons import patiently
from cordwood.pipeline.runtime.job_labels import labelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


Watch = Callable[[int, int], None]  # so much is done, of so much
Tell = Callable[[Sequence[Any]], None]  # what Spark says of every active stage
WATCH_S: Final = 0.2


def run_tasks(
    spark: SparkSession,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Watch | None = None,
    *,
    label: str | None = None,
) -> list[Result]:
    """``work`` of every task, in order; raises the first error a task met.

    ``watch`` is told now and then, from a thread of its own, how many tasks have ended. ``label``
    is what Spark's UI calls it; without one, the work's name.
    """
    if not tasks:
        return []
    label = label or f"{_name(work)}, {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"
    work = ranked(spark, work)

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = pickle.dumps(outcome(work, tasks[number]))
                yield pa.RecordBatch.from_pydict({"id": [number], "result": [result]})

    def tell(stages: Sequence[Any]) -> None:
        assert watch is not None
        watch(min(len(tasks), sum(stage.numCompletedTasks for stage in stages)), len(tasks))

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    made = numbers.mapInArrow(act, "id long, result binary")
    with labelled(spark, label), followed(spark, watch and tell):
        rows = patiently(made.collect)
    found = {row["id"]: pickle.loads(row["result"]) for row in rows}  # noqa: S301 - our own tasks'
    for number in range(len(tasks)):
        if isinstance(found[number], CordwoodError):
            raise found[number]
    return [cast(Result, found[number]) for number in range(len(tasks))]


def spread(
    spark: SparkSession,
    work: Callable[[Task], Iterator[Any]],
    tasks: Sequence[Task],
    schema: str,
) -> DataFrame:
    """What every task yields, in Arrow's batches, as a DataFrame: one partition for each task.

    For results that grow with what is read: they stay with the executors until the driver asks for
    a sum of them, or for one partition after another. An error of ours fails the job with it.
    """
    step = ranked(spark, _next)

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        for number in (each for ids in batches for each in ids.column("id").to_pylist()):
            found = work(tasks[number])
            while (batch := step(found)) is not None:
                yield batch

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(act, schema)


def _next(found: Iterator[Result]) -> Result | None:
    try:
        return next(found, None)
    except OSError as error:
        raise unavailable(error) from None


def ranked(spark: SparkSession, work: Callable[[Task], Result]) -> Callable[[Task], Result]:
    """The work as the session's priority wants it done."""
    word = priority.check_word(spark.conf.get(priority.SETTING, priority.BACKGROUND) or "")
    return work if word == priority.NORMAL else partial(priority.in_background, work, word=word)


def _name(work: Callable[..., Any]) -> str:
    return getattr(work, "__name__", type(work).__name__).strip("_").replace("_", " ")


@contextmanager
def followed(spark: SparkSession, tell: Tell | None) -> Iterator[None]:
    """Tell now and then, from a thread of its own, which stages of the body's jobs are active."""
    if tell is None:
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def look() -> None:
        while not ended.wait(WATCH_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            tell([stage for stage in stages if stage])

    looker = threading.Thread(target=look, name="spark-progress", daemon=True)
    looker.start()
    try:
        yield
    finally:
        ended.set()
        looker.join()


def outcome(work: Callable[[Task], Result], task: Task) -> Result | CordwoodError:
    """What came of a task; errors of ours, and the system's in a sentence, are values."""
    try:
        return work(task)
    except CordwoodError as error:
        return error
    except OSError as error:
        return unavailable(error)


def unavailable(error: OSError) -> UnavailableError:
    """A full disk, a place that cannot be written: one sentence, as no traceback helps."""
    where = f"{error.filename}: " if error.filename else ""
    return UnavailableError(f"{where}{error.strerror or error}; mend that and run this again")
