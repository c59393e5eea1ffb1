"""Compaction as a Spark job: the broker gives orders, Spark runs the tasks, the broker swaps.

``compaction_pass`` does the work of a pass. This module connects it to Spark, which runs its tasks,
and to the broker, which decides what is due and swaps the result in. Records never pass through
Spark's JVM. Executors must see the data directory at the path the broker gives.

A partition that fails is reported to the broker, which retries it later; the others continue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from cordwood.decide.compaction import encode_state
from cordwood.errors import CordwoodError, DamagedDigest, StaleManifest
from cordwood.model import TopicPartition
from cordwood.pipeline.compact.compaction_pass import (
    TASK_BYTES,
    CompactionPass,
    PassOutcome,
    Progress,
    RunTasks,
)
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.tasks import Watch, run_tasks, unavailable
from cordwood.pipeline.source.identity import check_identity, on_directory, parse_told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENEW_S = 60.0  # well within the broker's lease
ANSWER_S: Final = 3600.0  # the broker reads every staged byte before it answers

logger = logging.getLogger("cordwood.pipeline")

T = TypeVar("T")
R = TypeVar("R")

PARTITION: Final = "partition"  # attribute of a task's function, shown in Spark's UI


class CompactionApi(Protocol):
    """The broker's JSON API."""

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Send a GET request and return the reply."""
        ...

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request and return the reply."""
        ...


def on_spark(spark: SparkSession, watch: Watch | None = None) -> RunTasks:
    """Return a runner that makes each item one Spark task: tasks are large, items are small."""

    def run(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        with labelled(spark, f"compact {getattr(function, PARTITION, '')}".strip()):
            return run_tasks(spark, function, items, watch)

    return run


def where_proved(run: RunTasks, order: Mapping[str, Any]) -> RunTasks:
    """Wrap ``run``: a task fails where the path is not the broker's own data directory."""
    path, told = str(order["data"]), parse_told(order)
    if told is None:  # an older broker, whose data directory has no identity
        return run
    check_identity(path, told)  # the driver reads and writes there too

    def checked(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        act = update_wrapper(partial(on_directory, path, told, function), function)
        act.__dict__[PARTITION] = str(_tp(order))
        return run(act, items)

    return checked


def in_process(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
    """Run tasks one after another without Spark, for small logs and tests."""
    return [function(item) for item in items]


# --- the job --------------------------------------------------------------------------------


def run_due(
    api: CompactionApi,
    run: RunTasks,
    *,
    topic: str | None = None,
    demand: bool = False,
    dry: bool = False,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
    tasks: int = 1,
) -> list[PassOutcome]:
    """Compact every partition that is due, the dirtiest first.

    A failed partition is reported and does not stop the others. ``tasks`` is how many tasks run at
    the same time.
    """
    said = {"action": "begin", "topic": topic, "demand": demand, "dry": dry}
    outcomes = []
    orders = api.post("/api/compaction", said)["orders"]
    for number, order in enumerate(orders):
        where = _where(order)
        try:
            outcomes.append(run_order(api, run, order, dry=dry, progress=progress,
                                      task_bytes=task_bytes, tasks=tasks))  # fmt: skip
        except StaleManifest as error:  # the log has changed; the next run compacts it
            logger.info("compaction.stale partition=%s-%d: %s", *_tp(order), error)
            with suppress(CordwoodError):
                api.post("/api/compaction", {"action": "release", **where})
            outcomes.append(_failed(order, error))
        except Exception as error:  # noqa: BLE001 - one partition's failure must not stop others
            told = unavailable(error) if isinstance(error, OSError) else error
            logger.warning("compaction.failed partition=%s-%d: %s", *_tp(order), told)
            with suppress(CordwoodError):  # the lease expires if the broker cannot be reached
                api.post("/api/compaction", {"action": "fail", **where, "error": str(told)})
            outcomes.append(_failed(order, told))
        except (KeyboardInterrupt, SystemExit):
            _let_go(api, orders[number:])
            raise
    return outcomes


def _let_go(api: CompactionApi, orders: Sequence[Mapping[str, Any]]) -> None:
    """Release the leases after an interrupt, so the next job need not wait for their expiry."""
    for order in orders:
        with suppress(CordwoodError):
            api.post("/api/compaction", {"action": "release", **_where(order)})


def run_order(
    api: CompactionApi,
    run: RunTasks,
    order: Mapping[str, Any],
    *,
    dry: bool = False,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
    tasks: int = 1,
) -> PassOutcome:
    """Run one pass over one partition, and swap the result in unless ``dry``."""
    with _Renewal(api, order) as renewal:
        work = CompactionPass(
            order,
            where_proved(run, order),
            progress=renewal.checked(progress or _silent),
            task_bytes=task_bytes,
            tasks=tasks,
        )
        try:
            outcome = _prepare(work)
        except BaseException:
            work.tidy()
            raise
    try:
        if not dry:
            renewal.check()
            jobs, state = work.commit()
            told = {"topic_id": order["topic_id"], "jobs": jobs, "state": encode_state(state)}
            api.post("/api/compaction", {"action": "finish", **_where(order), **told})
        return outcome
    finally:
        work.tidy()


def _prepare(work: CompactionPass) -> PassOutcome:
    try:
        return work.prepare()
    except DamagedDigest as error:  # make the digests again from the log, once
        logger.warning("compaction.digests_damaged %s", error)
        work.forget_digests()
        return work.prepare()


class _Renewal:
    """Renews an order's lease while its stages run; a job that loses it stops at the next stage.

    A separate thread renews it, because a stage may take hours without a request to the broker.
    """

    def __init__(self, api: CompactionApi, order: Mapping[str, Any]) -> None:
        self._api = api
        self._said = {"action": "renew", **_where(order)}
        self._lost: StaleManifest | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="compaction-lease", daemon=True)

    def checked(self, progress: Progress) -> Progress:
        """Wrap ``progress`` so that it raises once the lease is lost."""

        def show(stage: str, done: int, total: int) -> None:
            self.check()
            progress(stage, done, total)

        return show

    def check(self) -> None:
        """Raise ``StaleManifest`` if the lease is lost."""
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        while self._lost is None and not self._done.wait(RENEW_S):
            try:
                self._api.post("/api/compaction", self._said)
            except StaleManifest as error:
                self._lost = error
            except CordwoodError as error:  # the broker may be back before the lease expires
                logger.warning("compaction.lease_not_renewed %s", error)

    def __enter__(self) -> Self:
        if self._said["lease"]:  # a dry run has none
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()


def _tp(order: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(order["topic"], order["partition"])


def _where(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that identify this order in a request: topic, partition and lease."""
    return {**_tp(order)._asdict(), "lease": order.get("lease", "")}


def _silent(stage: str, done: int, total: int) -> None:
    del stage, done, total


def _failed(order: Mapping[str, Any], error: Exception) -> PassOutcome:
    segments = order["segments"]
    size_bytes = sum(segment["size_bytes"] for segment in segments)
    records = sum(segment["records"] for segment in segments)
    return PassOutcome(
        tp=TopicPartition(order["topic"], order["partition"]),
        rule=str(order["rule"]),
        segments_before=len(segments),
        segments_rewritten=0,
        segments_staged=0,
        bytes_before=size_bytes,
        bytes_after=size_bytes,
        records_before=records,
        records_after=records,
        tombstones_removed=0,
        keyless_kept=0,
        digests_made=0,
        seconds=0.0,
        error=str(error),
    )


# --- on a schedule --------------------------------------------------------------------------


class CompactionSchedule:
    """Runs compaction at the interval in the broker's settings; may be called more often."""

    def __init__(self, started_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """The first run comes after the initial delay, counted from ``started_s``."""
        self._monotonic = monotonic
        self._started_s = started_s
        self._due_s: float | None = None

    def look(self, api: CompactionApi, run: RunTasks, tasks: int = 1) -> list[PassOutcome] | None:
        """Compact what is due if the interval has passed; otherwise return None."""
        schedule = api.get("/api/compaction", brief="1")["schedule"]
        if self._due_s is None:
            self._due_s = self._started_s + schedule["delay_ms"] / 1000
        if self._monotonic() < self._due_s:
            return None
        self._due_s = self._monotonic() + schedule["interval_ms"] / 1000
        return run_due(api, run, tasks=tasks)
