"""The pipeline process: runs the jobs of ``JOBS`` in one Spark session.

A ``Stream`` runs until it is stopped; after a failure it is opened again, with growing pauses. A
``ScheduledJob`` is called at intervals on its own thread. All jobs read their position from the
broker, so the runner keeps no state and may exit at any time: work that is not delivered has no
effect.

When every stream is open, the runner prints ``READY`` on stdout, and then one line of JSON per
second with the state of each job; a supervisor reads both. With a lifeline the process exits when
its stdin is closed, so it never outlives its parent.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cordwood.config import nearest
from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.failure_reasons import is_late, our_error, plain_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("cordwood.pipeline")

READY: Final = "READY"
CHECK_S: Final = 0.2  # between checks of the streams
REPORT_S: Final = 1.0
TICK_S: Final = 5.0  # between checks whether compaction is due
PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S: Final = 60.0  # a stream that ran this long resets its pauses to the shortest
SETTINGS: Final = {  # micro-batches are tiny plans that run thousands of times
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
STARTING: Final = {  # settings that apply only when Spark starts, so not with Spark Connect
    # Workers are forked with the kernels loaded.
    "spark.python.daemon.module": "cordwood.pipeline.runtime.daemon",
    # Records do not pass through this JVM, so its optimising compiler and parallel GC threads cost
    # more than they save (CPU per million routed records: 1.6 s with, 0.6 s without).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What every job receives: Spark session, broker address, and the stop event."""

    spark: SparkSession
    where: BrokerAddress
    stopping: threading.Event = field(default_factory=threading.Event)

    def api(self) -> BrokerApi:
        """A new connection to the broker; use one per thread."""
        return BrokerApi(self.where)


class Running(Protocol):
    """A running stream."""

    def failure(self) -> str | None:
        """Why the stream ended; None while it runs."""
        ...

    def report(self) -> dict[str, Any]:
        """The state of the stream, for the supervisor."""
        ...

    def stop(self) -> None:
        """Stop the stream."""
        ...


class Stream(NamedTuple):
    """A job that runs until it is stopped."""

    open: Callable[[Context], Running]


class ScheduledJob(NamedTuple):
    """A job that is called every ``interval_s``, the first time after ``delay_s``."""

    run: Callable[[Context], None]
    interval_s: float
    delay_s: float


def open_route(context: Context) -> Running:
    """Start the router at its cursor."""
    from cordwood.pipeline.route import RouteQuery, plan_route

    api = context.api()
    return RouteQuery(context.spark, plan_route(api), api)


class CompactionRound:
    """Runs compaction at the times that the broker's settings define."""

    def __init__(self) -> None:
        """The delay before the first round starts now."""
        self._started_s = time.monotonic()
        self._schedule: Any = None

    def __call__(self, context: Context) -> None:
        """If a round is due, compact the partitions that need it."""
        from cordwood.pipeline.compact import ANSWER_S, CompactionSchedule, on_spark
        from cordwood.pipeline.runtime.session import parallelism

        self._schedule = self._schedule or CompactionSchedule(self._started_s)
        with closing(BrokerApi(context.where, answer_s=ANSWER_S)) as api:
            self._schedule.run_if_due(api, on_spark(context.spark), parallelism(context.spark))


JOBS: dict[str, Stream | ScheduledJob] = {
    "route": Stream(open_route),
    "compact": ScheduledJob(CompactionRound(), interval_s=TICK_S, delay_s=TICK_S),
}


def parse_jobs(text: str) -> list[str]:
    """Parse names of ``JOBS`` such as ``route,compact``; empty means all."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in JOBS:
            raise ConfigError(
                f"there is no job {name}{nearest(name, JOBS)} (jobs: {', '.join(JOBS)})"
            )
    return names or list(JOBS)


def follow_lifeline() -> None:
    """Exit when stdin is closed: the parent process has ended or wants this one to end."""
    threading.Thread(target=_follow, name="cordwood-lifeline", daemon=True).start()


def run_pipeline(context: Context, jobs: Iterable[str]) -> None:
    """Run the jobs until SIGTERM or SIGINT, then exit the process; never returns."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: context.stopping.set())
    streams, schedules = {}, []
    for name in jobs:
        job = JOBS[name]
        if isinstance(job, Stream):
            streams[name] = StreamSupervisor(name, job, context)
        else:
            schedules.append(JobTimer(name, job, context))
    for timer in schedules:
        timer.start()
    try:
        _supervise(context, streams, schedules)
    except UnavailableError as error:
        logger.warning("pipeline.gone error=%s", error)
        _leave(error.exit_code)
    _leave()


def _supervise(
    context: Context, streams: dict[str, StreamSupervisor], schedules: Iterable[JobTimer]
) -> None:
    reported_s, is_announced = 0.0, False
    while not context.stopping.is_set():
        for supervisor in streams.values():
            supervisor.check()
        if not is_announced and all(each.is_open for each in streams.values()):
            _print(READY)
            is_announced = True
        if time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            _print(json.dumps(_reports(streams, schedules)))
        context.stopping.wait(CHECK_S)


def _reports(streams: dict[str, StreamSupervisor], schedules: Iterable[JobTimer]) -> dict[str, Any]:
    """The state of each job, by name."""
    reports = {name: each.report() for name, each in streams.items()}
    return reports | {timer.title: timer.report() for timer in schedules}


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _leave()


def _leave(code: int = 0) -> None:
    """Exit immediately; the JVM notices and exits too, and undelivered work has no effect."""
    logging.shutdown()
    os._exit(code)


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # the reader is gone; the lifeline handles that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class StreamSupervisor:
    """Keeps one stream open and reopens it after failures."""

    def __init__(
        self, name: str, job: Stream, context: Context, pauses_s: Sequence[float] = PAUSES_S
    ) -> None:
        """The first call of ``check`` opens the stream; ``pauses_s`` follow failures in turn."""
        self._pauses_s = pauses_s
        self._name = name
        self._job = job
        self._context = context
        self._running: Running | None = None
        self._opened_s = 0.0
        self._due_s = 0.0
        self._failures = 0
        self._failed = 0  # total in this process, for the broker's counter
        self._error: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stream is open."""
        return self._running is not None

    def check(self) -> None:
        """Check whether the stream has ended, and reopen it when the pause is over."""
        if self._running is not None:
            failure = self._find_failure(self._running)
            if failure is None:
                return
            self._running.stop()
            self._running = None
            self._fail(failure)
        if time.monotonic() >= self._due_s:
            self._open()

    @staticmethod
    def _find_failure(running: Running) -> str | None:
        """Why the stream ended; raises ``UnavailableError`` if Spark itself is gone."""
        try:
            return running.failure()
        except Exception as error:
            raise UnavailableError(
                f"Spark is no longer running: {type(error).__name__}: {error}"
            ) from error

    def _open(self) -> None:
        try:
            self._running = self._job.open(self._context)
        except Exception as error:  # noqa: BLE001 - one job's failure must not stop the others
            self._fail(f"{type(error).__name__}: {plain_reason(error)}")
        else:
            self._opened_s = time.monotonic()
            logger.info("job.opened job=%s", self._name)

    def _fail(self, why: str) -> None:
        now_s = time.monotonic()
        if self._opened_s and now_s - self._opened_s > STEADY_S:
            self._failures = 0
        pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._failures += 1
        self._failed += 1
        self._error = why
        self._due_s = now_s + pause_s
        logger.warning("job.failed job=%s retry_s=%.1f error=%s", self._name, pause_s, why)

    def report(self) -> dict[str, Any]:
        """The state of the stream and its last error; a failing report does not raise."""
        try:
            state = self._running.report() if self._running else {}
        except Exception as error:  # noqa: BLE001 - one job's failure must not stop the others
            state = {"report_error": f"{type(error).__name__}: {error}"}
        return {
            "open": self.is_open,
            "failures": self._failures,
            "failed": self._failed,
            "error": self._error,
            **state,
        }


class JobTimer(threading.Thread):
    """A thread that calls one scheduled job at intervals."""

    def __init__(self, name: str, job: ScheduledJob, context: Context) -> None:
        """The thread starts with ``start``."""
        super().__init__(name=f"cordwood-{name}", daemon=True)
        self.title = name
        self._job = job
        self._context = context
        self._failed = 0
        self._error: str | None = None
        self._is_well = True  # the last round succeeded, or none has run

    def report(self) -> dict[str, Any]:
        """Whether the last round succeeded, and the last error."""
        return {"open": self._is_well, "failed": self._failed, "error": self._error}

    def run(self) -> None:
        """Call the job until the runner stops."""
        pause_s = self._job.delay_s
        while not self._context.stopping.wait(pause_s):
            pause_s = self._job.interval_s
            try:
                self._job.run(self._context)
                self._is_well = True
            except Exception as error:  # a failed round must not prevent the next one
                self._is_well, self._failed = False, self._failed + 1
                self._error = f"{type(error).__name__}: {plain_reason(error)}"
                # Expected failures are logged as one sentence, bugs with a stack trace.
                known = our_error(error) is not None or is_late(error)
                fields = self.title, pause_s, self._error
                logger.warning(
                    "job.failed job=%s retry_s=%.0f error=%s", *fields, exc_info=not known
                )
