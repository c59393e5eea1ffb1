"""Many independent pieces of work as Spark tasks, one each: plain values in, plain values out.

For jobs whose work is files rather than rows. Runs on any session, Spark Connect included. An error
of ours that a task meets comes back as itself, not wrapped in Spark's. None of it is urgent: unless
the session says otherwise (``priority``), tasks take the cores that nobody else wants.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cordwood.errors import CordwoodError, UnavailableError
from cordwood.pipeline import priority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
) -> list[Result]:
    """``work`` of every task, in order; raises the first error a task met.

    ``watch`` is told now and then, from a thread of its own, how many tasks have ended.
    """
    if not tasks:
        return []
    if priority.is_idle(spark.conf.get(priority.SETTING, priority.IDLE)):
        work = partial(priority.in_background, work)

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = pickle.dumps(_outcome(work, tasks[number]))
                yield pa.RecordBatch.from_pydict({"id": [number], "result": [result]})

    def tell(stages: Sequence[Any]) -> None:
        assert watch is not None
        watch(min(len(tasks), sum(stage.numCompletedTasks for stage in stages)), len(tasks))

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    with followed(spark, watch and tell):
        rows = numbers.mapInArrow(act, "id long, result binary").collect()
    found = {row["id"]: pickle.loads(row["result"]) for row in rows}  # noqa: S301 - our own tasks'
    for number in range(len(tasks)):
        if isinstance(found[number], CordwoodError):
            raise found[number]
    return [cast(Result, found[number]) for number in range(len(tasks))]


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


def _outcome(work: Callable[[Task], Result], task: Task) -> Result | CordwoodError:
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


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Errors of the system that name no file, as those of a write, name this place."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(place)
        raise
