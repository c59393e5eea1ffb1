"""Set the job group and description that Spark's UI shows for our jobs.

Labels nest: a job inside ``labelled("archive orders")`` and ``labelled("write 12 bundles")`` is
shown as *archive orders: write 12 bundles*. If the user has set a job group on the thread, it is
kept, and the user's description comes before ours. Streaming queries need no label; Spark shows
their names. Spark Connect supports only a tag instead of the group, and no description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from cordwood.pipeline.runtime.session import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

GROUP: Final = "spark.jobGroup.id"
DESCRIPTION: Final = "spark.job.description"
OURS: Final = "cordwood"
TEXT_MAX: Final = 200

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def labelled(spark: SparkSession, what: str) -> Iterator[None]:
    """Label the Spark jobs that this thread starts in the body of the ``with`` statement."""
    if is_remote(spark):
        with _tagged(spark):
            yield
        return
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (GROUP, DESCRIPTION)}
    context.setLocalProperty(GROUP, before[GROUP] or OURS)
    context.setLocalProperty(DESCRIPTION, join_labels(before[DESCRIPTION], what))
    try:
        yield
    except (Exception, GeneratorExit) as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            _restore(context, before)
        raise
    # After KeyboardInterrupt, make no further call: py4j would read the interrupted call's reply.
    _restore(context, before)


def job(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Label all jobs of a function whose first argument is the Spark session.

    ``what`` may refer to positional arguments, as in ``"table {3.topic}"``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def act(*args: P.args, **kwargs: P.kwargs) -> R:
            with labelled(cast("SparkSession", args[0]), what.format(*args)):
                return function(*args, **kwargs)

        return act

    return decorate


def _restore(context: SparkContext, before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        context.setLocalProperty(name, value)  # None removes the property


@contextmanager
def _tagged(spark: SparkSession) -> Iterator[None]:
    if OURS in spark.getTags():
        yield
        return
    spark.addTag(OURS)
    try:
        yield
    finally:
        spark.removeTag(OURS)


def join_labels(outer: str | None, inner: str) -> str:
    """Join two labels to one line that is short enough for a column of Spark's UI."""
    line = " ".join(inner.split())
    text = f"{outer}: {line}" if outer else line
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
