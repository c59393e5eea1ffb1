"""Wait for a cluster's executors before their cores are counted.

A session on a cluster is ready before its executors are. Spark counts the cores of the executors
that have registered, and reports two if there is none. A job planned at that moment gets two tasks
on a cluster of any size. So code that plans by cores first waits here, once per application.

Executors register one after another, and Spark does not report how many to expect. If
``spark.executor.instances`` is not set, the count is complete when no executor has registered for
``SETTLED_S``. Later jobs count later executors. With dynamic allocation, executors start only after
tasks are submitted, so there is no wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

REGISTER_S: Final = 120.0  # longest wait; starting an executor's JVM may take that long
SETTLED_S: Final = 1.0
POLL_S: Final = 0.05
_waited: set[str] = set()  # ids of applications that were waited for


def wait_for_executors(context: SparkContext) -> None:
    """Wait until the application's executors seem to have registered."""
    application = str(context.applicationId)
    if application in _waited:
        return
    settings = dict(context.getConf().getAll())
    if is_waiting_useful(settings):
        tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has only jobs
        instances = settings.get("spark.executor.instances")
        wait_until_settled(
            lambda: len(tracker.getExecutorInfos()) - 1,  # one is the driver
            expected=int(instances) if instances else None,
        )
    _waited.add(application)


def is_waiting_useful(settings: Mapping[str, str]) -> bool:
    """Whether allocation is static and Spark derives its parallelism from the executors' cores."""
    is_dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    return not is_dynamic and "spark.default.parallelism" not in settings


def wait_until_settled(
    count: Callable[[], int],
    *,
    expected: int | None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait for the expected count, or until it stops growing; at most ``REGISTER_S``."""
    started_s = changed_s = monotonic()
    seen = 0
    while (now_s := monotonic()) - started_s < REGISTER_S:
        registered = count()
        if registered != seen:
            seen, changed_s = registered, now_s
        if seen >= expected if expected else seen and now_s - changed_s >= SETTLED_S:
            return
        sleep(POLL_S)
