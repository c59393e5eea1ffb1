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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import msgspec

from cordwood.errors import CordwoodError, DamagedDigest, StaleManifest
from cordwood.log.format.identity import DataIdentity
from cordwood.model import TopicPartition
from cordwood.pipeline.compact.compaction_pass import (
    CompactionPass,
    PassLimits,
    Progress,
    RunTasks,
)
from cordwood.pipeline.compact.pass_result import PassOutcome, outcome_before
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.tasks import Watch, run_tasks, unavailable
from cordwood.pipeline.source.identity import check_identity, on_directory
from cordwood.protocol.api.call import Call
from cordwood.protocol.api.compaction import (
    BeginCompaction,
    CompactionOrder,
    FailCompaction,
    FinishCompaction,
    ListCompaction,
    ReleaseLease,
    RenewLease,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_S: Final = 3600.0  # the broker reads every staged byte before it answers

logger = logging.getLogger("cordwood.pipeline")

T = TypeVar("T")
R = TypeVar("R")

PARTITION: Final = "partition"  # attribute of a task's function, shown in Spark's UI


class CompactionApi(Protocol):
    """The broker's HTTP API."""

    def call(self, request: Call[R], /) -> R:
        """Send a request and return the reply."""
        ...


def on_spark(spark: SparkSession, watch: Watch | None = None) -> RunTasks:
    """Return a runner that makes each item one Spark task: tasks are large, items are small."""

    def run(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        with labelled(spark, f"compact {getattr(function, PARTITION, '')}".strip()):
            return run_tasks(spark, function, items, watch)

    return run


def where_proved(run: RunTasks, order: CompactionOrder) -> RunTasks:
    """Wrap ``run``: a task fails where the path is not the broker's own data directory."""
    path, identity = order.data, DataIdentity(*msgspec.structs.astuple(order.identity))
    check_identity(path, identity)  # the driver reads and writes there too

    def checked(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        act = update_wrapper(partial(on_directory, path, identity, function), function)
        act.__dict__[PARTITION] = str(_tp(order))
        return run(act, items)

    return checked


# --- the job --------------------------------------------------------------------------------


def run_due(
    api: CompactionApi,
    run: RunTasks,
    *,
    topic: str | None = None,
    demand: bool = False,
    dry: bool = False,
    progress: Progress | None = None,
    limits: PassLimits = PassLimits(),  # noqa: B008 - it is a value
) -> list[PassOutcome]:
    """Compact every partition that is due, the dirtiest first.

    A failed partition is reported and does not stop the others.
    """
    outcomes = []
    orders = api.call(BeginCompaction(topic, demand, dry)).orders
    for number, order in enumerate(orders):
        try:
            outcomes.append(run_order(api, run, order, dry=dry, progress=progress, limits=limits))
        except StaleManifest as error:  # the log has changed; the next run compacts it
            logger.info("compaction.stale partition=%s-%d: %s", *_tp(order), error)
            _release(api, [order])
            outcomes.append(outcome_before(order, str(error)))
        except Exception as error:  # noqa: BLE001 - one partition's failure must not stop others
            cause = unavailable(error) if isinstance(error, OSError) else error
            logger.warning("compaction.failed partition=%s-%d: %s", *_tp(order), cause)
            with suppress(CordwoodError):  # the lease expires if the broker cannot be reached
                api.call(FailCompaction(*_tp(order), str(cause), order.lease))
            outcomes.append(outcome_before(order, str(cause)))
        except (KeyboardInterrupt, SystemExit):
            _release(api, orders[number:])
            raise
    return outcomes


def _release(api: CompactionApi, orders: Sequence[CompactionOrder]) -> None:
    """Release the leases, so that the next job need not wait for their expiry."""
    for order in orders:
        with suppress(CordwoodError):
            api.call(ReleaseLease(*_tp(order), order.lease))


def run_order(
    api: CompactionApi,
    run: RunTasks,
    order: CompactionOrder,
    *,
    dry: bool = False,
    progress: Progress | None = None,
    limits: PassLimits = PassLimits(),  # noqa: B008 - it is a value
) -> PassOutcome:
    """Run one pass over one partition, and swap the result in unless ``dry``."""
    with _Renewal(api, order, limits.renew_s) as renewal:
        checked = renewal.checked(progress or (lambda *_: None))
        work = CompactionPass(order, where_proved(run, order), progress=checked, limits=limits)
        try:
            outcome = _prepare(work)
        except BaseException:
            work.tidy()
            raise
    try:
        if not dry:
            renewal.check()
            jobs, state = work.commit()
            report = FinishCompaction(*_tp(order), order.topic_id, tuple(jobs), state, order.lease)
            api.call(report)
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

    def __init__(self, api: CompactionApi, order: CompactionOrder, renew_s: float) -> None:
        self._api = api
        self._renew_s = renew_s
        self._request = RenewLease(*_tp(order), order.lease)
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
        while self._lost is None and not self._done.wait(self._renew_s):
            try:
                self._api.call(self._request)
            except StaleManifest as error:
                self._lost = error
            except CordwoodError as error:  # the broker may be back before the lease expires
                logger.warning("compaction.lease_not_renewed %s", error)

    def __enter__(self) -> Self:
        if self._request.lease:  # a dry run has none
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()


def _tp(order: CompactionOrder) -> TopicPartition:
    return TopicPartition(order.topic, order.partition)


# --- on a schedule --------------------------------------------------------------------------


class CompactionSchedule:
    """Runs compaction at the interval in the broker's settings; may be called more often."""

    def __init__(self, started_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """The first run comes after the initial delay, counted from ``started_s``."""
        self._monotonic = monotonic
        self._started_s = started_s
        self._due_s: float | None = None

    def run_if_due(
        self, api: CompactionApi, run: RunTasks, tasks: int = 1
    ) -> list[PassOutcome] | None:
        """Compact what is due if the interval has passed; otherwise return None."""
        schedule = api.call(ListCompaction(brief="1")).schedule
        if self._due_s is None:
            self._due_s = self._started_s + schedule.delay_ms / 1000
        if self._monotonic() < self._due_s:
            return None
        self._due_s = self._monotonic() + schedule.interval_ms / 1000
        return run_due(api, run, limits=PassLimits(tasks))
