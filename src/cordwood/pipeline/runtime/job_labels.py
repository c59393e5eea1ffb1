"""Set the job group and description that Spark's UI shows for our jobs.

Labels nest: a job inside ``labelled("archive orders")`` and ``labelled("write 12 bundles")`` is
shown as *archive orders: write 12 bundles*. If the user has set a job group on the thread, it is
kept, and the user's description comes before ours. Streaming queries need no label; Spark shows
their names. Spark Connect supports only a tag instead of the group, and no description.

A ``KeyboardInterrupt`` may have hit py4j in the middle of a call, and the next call would read the
interrupted call's reply. So a block that it ends leaves its label in place, and the next block of
the same thread removes it: in a notebook, Ctrl-C does not mislabel the cells that follow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cordwood.pipeline.runtime.session import is_remote

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

GROUP: Final = "spark.jobGroup.id"
DESCRIPTION: Final = "spark.job.description"
OURS: Final = "cordwood"
TEXT_MAX: Final = 200

Properties = Mapping[str, str | None]


class _Interrupted(threading.local):
    """The label that an interrupted block left on this thread, and what to restore instead."""

    left: Properties | None = None
    before: Properties | None = None


_interrupted: Final = _Interrupted()


@contextmanager
def labelled(spark: SparkSession, what: str) -> Iterator[None]:
    """Label the Spark jobs that this thread starts in the body of the ``with`` statement."""
    if is_remote(spark):
        with _tagged(spark):
            yield
        return
    context = spark.sparkContext
    before = _unlabelled(context)
    ours = {
        GROUP: before[GROUP] or OURS,
        DESCRIPTION: join_labels(before[DESCRIPTION], what),
    }
    _set_properties(context, ours)
    try:
        yield
    except (Exception, GeneratorExit) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            _leave_label(ours, before)
        else:
            _set_properties(context, before)
        raise
    except KeyboardInterrupt:
        _leave_label(ours, before)
        raise
    _set_properties(context, before)


def _unlabelled(context: SparkContext) -> Properties:
    """Return the thread's properties without a label that an interrupted block left behind."""
    now = {name: context.getLocalProperty(name) for name in (GROUP, DESCRIPTION)}
    left, before = _interrupted.left, _interrupted.before
    _interrupted.left = _interrupted.before = None
    return before if before is not None and now == left else now


def _leave_label(ours: Properties, before: Properties) -> None:
    """Remember what to restore later. The innermost label stays; the outermost block decides."""
    if _interrupted.left is None:
        _interrupted.left = ours
    _interrupted.before = before


def _set_properties(context: SparkContext, values: Properties) -> None:
    for name, value in values.items():
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
