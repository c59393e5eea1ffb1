"""Run independent pieces of work as Spark tasks; arguments and results are plain values.

For jobs that process files rather than rows. Works with any session, Spark Connect included. A
``CordwoodError`` in a task is raised unchanged, not wrapped in Spark's error. Tasks run at
background priority unless the session sets another (``priority``).
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cordwood.errors import CordwoodError, UnavailableError
from cordwood.pipeline.runtime import priority
from cordwood.pipeline.runtime.failure_reasons import patiently
from cordwood.pipeline.runtime.job_labels import labelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


Watch = Callable[[int, int], None]  # tasks done, tasks in total
Report = Callable[[Sequence[Any]], None]  # stage infos of all active stages
WATCH_S: Final = 0.2


def run_tasks(
    spark: SparkSession,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    watch: Watch | None = None,
    *,
    label: str | None = None,
    watch_s: float = WATCH_S,
) -> list[Result]:
    """Run ``work`` on every task; returns the results in order or raises the first task's error.

    A separate thread calls ``watch`` every ``watch_s`` seconds with the number of completed tasks.
    ``label`` is the name in Spark's UI; the default is the name of ``work``.
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

    def report(stages: Sequence[Any]) -> None:
        assert watch is not None
        watch(min(len(tasks), sum(stage.numCompletedTasks for stage in stages)), len(tasks))

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    made = numbers.mapInArrow(act, "id long, result binary")
    with labelled(spark, label), followed(spark, watch and report, interval_s=watch_s):
        rows = sorted(patiently(made.collect))
    return _results(rows)


def run_on_rows(frame: DataFrame, work: Callable[[Iterator[Any]], Result]) -> list[Result]:
    """Run ``work`` on the Arrow batches of every partition; returns the results in any order."""

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(outcome(work, batches))]})

    return _results(frame.mapInArrow(act, "result binary").collect())


def _results(rows: Iterable[Any]) -> list[Any]:
    """Unpickle the results of our own tasks; raises the first task's error."""
    results = [pickle.loads(row["result"]) for row in rows]  # noqa: S301
    for result in results:
        if isinstance(result, CordwoodError):
            raise result
    return results


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
            results = work(tasks[number])
            while (batch := step(results)) is not None:
                yield batch

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(act, schema)


def _next(results: Iterator[Result]) -> Result | None:
    try:
        return next(results, None)
    except OSError as error:
        raise unavailable(error) from None


def ranked(spark: SparkSession, work: Callable[[Task], Result]) -> Callable[[Task], Result]:
    """Wrap ``work`` so that it runs at the session's priority."""
    word = priority.check_word(spark.conf.get(priority.SETTING, priority.BACKGROUND) or "")
    return work if word == priority.NORMAL else partial(priority.in_background, work, word=word)


def _name(work: Callable[..., Any]) -> str:
    return getattr(work, "__name__", type(work).__name__).strip("_").replace("_", " ")


@contextmanager
def followed(
    spark: SparkSession, report: Report | None, *, interval_s: float = WATCH_S
) -> Iterator[None]:
    """While the body runs, periodically call ``report`` from a thread with the active stages."""
    if report is None:
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def follow() -> None:
        while not ended.wait(interval_s):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            report([stage for stage in stages if stage])

    follower = threading.Thread(target=follow, name="spark-progress", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


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
    return UnavailableError(
        f"{where}{error.strerror or error}; fix this, then run the command again"
    )
