"""Wait for a cluster's executors before their cores are counted.

A session on a cluster is ready before its executors are: Spark counts the cores of those that have
registered, and two when there is none. A job that is planned in that moment gets two tasks on a
cluster of any size. So whoever plans by cores waits for the executors first, once per application.

Executors register one after another and Spark does not say how many will come, unless a setting
does. They are taken to be complete when no further one has come for ``SETTLED_S``. Later ones are
counted by later jobs. With dynamic allocation executors come after the tasks, so nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

REGISTER_S: Final = 120.0  # no task runs before the first executor is there; Java starts late
SETTLED_S: Final = 1.0
POLL_S: Final = 0.05
_waited: set[str] = set()  # applications


def wait_for_executors(context: SparkContext) -> None:
    """Until the application's executors have registered, as far as anybody can tell."""
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
    """Whether executors come by themselves, and their cores are what Spark counts."""
    is_dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    return not is_dynamic and "spark.default.parallelism" not in settings


def wait_until_settled(
    count: Callable[[], int],
    *,
    expected: int | None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until as many as expected are there, or no further one comes; ``REGISTER_S`` at most."""
    started_s = changed_s = monotonic()
    seen = 0
    while (now_s := monotonic()) - started_s < REGISTER_S:
        found = count()
        if found != seen:
            seen, changed_s = found, now_s
        if seen >= expected if expected else seen and now_s - changed_s >= SETTLED_S:
            return
        sleep(POLL_S)
