"""The pipeline's runner: one Spark session, and the jobs that live in it.

A job is a row of ``JOBS``. A *stream* runs until it is stopped; one that fails is opened again,
after a pause that grows. A *schedule* is called every so often on a thread of its own. All jobs
find their place again by asking the broker, so the runner keeps no state, and ends by simply
ending: what is not delivered was never there.

When every stream is open the runner prints ``READY`` on stdout, and now and then a line of JSON
saying how each job does; a supervisor reads both. With a lifeline it ends when its stdin does, so
it never outlives who started it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
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
LOOK_S: Final = 0.2  # between looks at the streams
REPORT_S: Final = 1.0
TICK_S: Final = 5.0  # between looks at whether it is time to compact
PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S: Final = 60.0  # a stream that ran this long starts its pauses anew
SETTINGS: Final = {  # micro-batches are tiny plans, run thousands of times
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
STARTING: Final = {  # what only who starts Spark can say; a Spark Connect server has been started
    # Workers are forked with the kernels loaded.
    "spark.python.daemon.module": "cordwood.pipeline.runtime.daemon",
    # Records do not pass through this Java: what its optimising compiler and many collector threads
    # would cost is more than they save (CPU per million routed records: 1.6 s with, 0.6 s without).
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What a job is given."""

    spark: SparkSession
    where: BrokerAddress
    stopping: threading.Event = field(default_factory=threading.Event)

    def api(self) -> BrokerApi:
        """A connection of the caller's own; one per thread."""
        return BrokerApi(self.where)


class Running(Protocol):
    """A stream under way."""

    def failure(self) -> str | None:
        """Why it ended, if it did."""
        ...

    def report(self) -> dict[str, Any]:
        """How it does."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class Stream(NamedTuple):
    """A job that runs until it is stopped."""

    open: Callable[[Context], Running]


class ScheduledJob(NamedTuple):
    """A job that looks for work every ``interval_s``, first after ``delay_s``."""

    run: Callable[[Context], None]
    interval_s: float
    delay_s: float


def open_route(context: Context) -> Running:
    """The router, at its cursor."""
    from cordwood.pipeline.route.query import RouteQuery, plan_route

    api = context.api()
    return RouteQuery(context.spark, plan_route(api, context.where), api)


class CompactionRound:
    """A round of compaction, whenever the broker's settings say that it is time."""

    def __init__(self) -> None:
        """The first round's delay counts from here."""
        self._started_s = time.monotonic()
        self._lookout: Any = None

    def __call__(self, context: Context) -> None:
        """Look, if it is time; compact what is due."""
        from cordwood.pipeline.compact.job import ANSWER_S, CompactionSchedule, on_spark
        from cordwood.pipeline.runtime.session import parallelism

        self._lookout = self._lookout or CompactionSchedule(self._started_s)
        with closing(BrokerApi(context.where, answer_s=ANSWER_S)) as api:
            self._lookout.look(api, on_spark(context.spark), parallelism(context.spark))


JOBS: dict[str, Stream | ScheduledJob] = {
    "route": Stream(open_route),
    "compact": ScheduledJob(CompactionRound(), interval_s=TICK_S, delay_s=TICK_S),
}


def parse_jobs(text: str) -> list[str]:
    """``route,compact`` as names of ``JOBS``; empty means all."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in JOBS:
            raise ConfigError(
                f"there is no job {name}{nearest(name, JOBS)} (jobs: {', '.join(JOBS)})"
            )
    return names or list(JOBS)


def follow_lifeline() -> None:
    """From now on, end when stdin does: whoever started us is gone, or wants us to be."""
    threading.Thread(target=_follow, name="cordwood-lifeline", daemon=True).start()


def run_pipeline(context: Context, jobs: Iterable[str]) -> None:
    """Until SIGTERM or SIGINT; does not return."""
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
        _tend(context, streams, schedules)
    except UnavailableError as error:
        logger.warning("pipeline.gone error=%s", error)
        _leave(error.exit_code)
    _leave()


def _tend(
    context: Context, streams: dict[str, StreamSupervisor], schedules: Iterable[JobTimer]
) -> None:
    reported_s, is_announced = 0.0, False
    while not context.stopping.is_set():
        for keeper in streams.values():
            keeper.look()
        if not is_announced and all(keeper.is_open for keeper in streams.values()):
            _say(READY)
            is_announced = True
        if time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            _say(json.dumps(_reports(streams, schedules)))
        context.stopping.wait(LOOK_S)


def _reports(streams: dict[str, StreamSupervisor], schedules: Iterable[JobTimer]) -> dict[str, Any]:
    """How each job does, by name."""
    reports = {name: keeper.report() for name, keeper in streams.items()}
    return reports | {timer.title: timer.report() for timer in schedules}


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _leave()


def _leave(code: int = 0) -> None:
    """At once: the JVM sees our end and goes too, and nothing half done counts."""
    logging.shutdown()
    os._exit(code)


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # nobody listens any more; the lifeline tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class StreamSupervisor:
    """Keeps one stream open."""

    def __init__(self, name: str, job: Stream, context: Context) -> None:
        """Opened at the first look."""
        self._name = name
        self._job = job
        self._context = context
        self._running: Running | None = None
        self._opened_s = 0.0
        self._due_s = 0.0
        self._failures = 0
        self._failed = 0  # in this process, for the broker's counter
        self._error: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stream runs."""
        return self._running is not None

    def look(self) -> None:
        """Notice an end, and open again when it is time."""
        if self._running is not None:
            failure = self._ask(self._running)
            if failure is None:
                return
            self._running.stop()
            self._running = None
            self._fail(failure)
        if time.monotonic() >= self._due_s:
            self._open()

    @staticmethod
    def _ask(running: Running) -> str | None:
        """Why the stream ended; a Spark that cannot say is gone, and we with it."""
        try:
            return running.failure()
        except Exception as error:
            raise UnavailableError(f"Spark is gone: {type(error).__name__}: {error}") from error

    def _open(self) -> None:
        try:
            self._running = self._job.open(self._context)
        except Exception as error:  # noqa: BLE001 - whatever ails one job, the others go on
            self._fail(f"{type(error).__name__}: {plain_reason(error)}")
        else:
            self._opened_s = time.monotonic()
            logger.info("job.opened job=%s", self._name)

    def _fail(self, why: str) -> None:
        now_s = time.monotonic()
        if self._opened_s and now_s - self._opened_s > STEADY_S:
            self._failures = 0
        pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._failed += 1
        self._error = why
        self._due_s = now_s + pause_s
        logger.warning("job.failed job=%s retry_s=%.1f error=%s", self._name, pause_s, why)

    def report(self) -> dict[str, Any]:
        """How the stream does, and what ailed it last; one that cannot say holds up no other."""
        try:
            found = self._running.report() if self._running else {}
        except Exception as error:  # noqa: BLE001 - whatever ails one job, the others go on
            found = {"report_error": f"{type(error).__name__}: {error}"}
        return {
            "open": self.is_open,
            "failures": self._failures,
            "failed": self._failed,
            "error": self._error,
            **found,
        }


class JobTimer(threading.Thread):
    """Calls one scheduled job again and again."""

    def __init__(self, name: str, job: ScheduledJob, context: Context) -> None:
        """Starts nothing yet."""
        super().__init__(name=f"cordwood-{name}", daemon=True)
        self.title = name
        self._job = job
        self._context = context
        self._failed = 0
        self._error: str | None = None
        self._is_well = True  # the last round was, or none has been

    def report(self) -> dict[str, Any]:
        """How the last round went, and what ailed the job last."""
        return {"open": self._is_well, "failed": self._failed, "error": self._error}

    def run(self) -> None:
        """Until the runner stops."""
        pause_s = self._job.delay_s
        while not self._context.stopping.wait(pause_s):
            pause_s = self._job.interval_s
            try:
                self._job.run(self._context)
                self._is_well = True
            except Exception as error:  # whatever ails one round, the next is tried
                self._is_well, self._failed = False, self._failed + 1
                self._error = f"{type(error).__name__}: {plain_reason(error)}"
                # A failure the world or Spark brought is a sentence; a mistake of ours has a stack.
                known = our_error(error) is not None or is_late(error)
                fields = self.title, pause_s, self._error
                logger.warning(
                    "job.failed job=%s retry_s=%.0f error=%s", *fields, exc_info=not known
                )
