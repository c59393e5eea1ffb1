"""What Spark's UI says of a job: a group for whoever started it, and a sentence that says what.

Labels nest: a job of ``labelled("archive orders")`` inside which ``labelled("write 12 bundles")``
is in force is shown as *archive orders: write 12 bundles*. Whoever labelled their own thread keeps
their group, and finds their words before ours. Streaming queries need none of it; Spark shows
their names. Through Spark Connect a group becomes a tag, and a sentence cannot be sent.
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
    """Jobs that this thread starts in the body say what they are."""
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
    # An interrupted thread asks Java nothing more: it would be given an answer it left unread.
    _restore(context, before)


def job(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For functions whose first argument is the session: all they do on it is labelled so.

    ``what`` may name the function's arguments by their places, as in ``"table {3.topic}"``.
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
        context.setLocalProperty(name, value)  # None takes it away


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
    """One line, short enough for a column of Spark's UI."""
    line = " ".join(inner.split())
    text = f"{outer}: {line}" if outer else line
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
