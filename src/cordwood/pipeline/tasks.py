"""Many independent pieces of work as Spark tasks, one each: plain values in, plain values out.

For jobs whose work is files rather than rows. Runs on any session, Spark Connect included. An error
of ours that a task meets comes back as itself, not wrapped in Spark's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cordwood.errors import CordwoodError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    spark: SparkSession, work: Callable[[Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """``work`` of every task, in order; raises the first error a task met."""
    if not tasks:
        return []

    def act(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = pickle.dumps(_outcome(work, tasks[number]))
                yield pa.RecordBatch.from_pydict({"id": [number], "result": [result]})

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    rows = numbers.mapInArrow(act, "id long, result binary").collect()
    found = {row["id"]: pickle.loads(row["result"]) for row in rows}  # noqa: S301 - our own tasks'
    for number in range(len(tasks)):
        if isinstance(found[number], CordwoodError):
            raise found[number]
    return [cast(Result, found[number]) for number in range(len(tasks))]


def _outcome(work: Callable[[Task], Result], task: Task) -> Result | CordwoodError:
    try:
        return work(task)
    except CordwoodError as error:
        return error
