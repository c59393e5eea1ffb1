"""Run independent pieces of work as Spark tasks; arguments and results are plain values.

For jobs that process files rather than rows. Works with any session, Spark Connect included. A
``CordwoodError`` in a task is raised unchanged, not wrapped in Spark's error. Tasks run at
background priority unless the session sets another (``priority``).
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


Watch = Callable[[int, int], None]  # tasks done, tasks in total
Tell = Callable[[Sequence[Any]], None]  # stage infos of all active stages
WATCH_S: Final = 0.2


def run_tasks(
    spark: SparkSession,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Watch | None = None,
    *,
    label: str | None = None,
) -> list[Result]:
    """Run ``work`` on every task; returns the results in order or raises the first task's error.

    A separate thread periodically calls ``watch`` with the number of completed tasks. ``label`` is
    the name in Spark's UI; the default is the name of ``work``.
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
    """A DataFrame of the Arrow batches that every task yields, one partition per task.

    For results that grow with the input: they stay on the executors until the driver requests an
    aggregate, or one partition after another. A ``CordwoodError`` in a task fails the Spark job.
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
    """Wrap ``work`` so that it runs at the session's priority."""
    word = priority.check_word(spark.conf.get(priority.SETTING, priority.BACKGROUND) or "")
    return work if word == priority.NORMAL else partial(priority.in_background, work, word=word)


def _name(work: Callable[..., Any]) -> str:
    return getattr(work, "__name__", type(work).__name__).strip("_").replace("_", " ")


@contextmanager
def followed(spark: SparkSession, tell: Tell | None) -> Iterator[None]:
    """While the body runs, periodically call ``tell`` from a thread with the active stages."""
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
    """The result of a task; returns a ``CordwoodError`` or a converted ``OSError`` as a value."""
    try:
        return work(task)
    except CordwoodError as error:
        return error
    except OSError as error:
        return unavailable(error)


def unavailable(error: OSError) -> UnavailableError:
    """Convert an error such as a full disk to one sentence without a traceback."""
    where = f"{error.filename}: " if error.filename else ""
    return UnavailableError(f"{where}{error.strerror or error}; mend that and run this again")
