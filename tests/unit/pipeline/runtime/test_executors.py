"""How long a job on a cluster waits for executors before it counts their cores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cordwood.pipeline.runtime import executors
from cordwood.pipeline.runtime.executors import REGISTER_S, SETTLED_S, wait_until_settled
from cordwood.pipeline.runtime.session import parallelism


class Cluster:
    """A clock that moves when somebody sleeps, and executors that register by it."""

    def __init__(self, *registered_s):
        self.now_s = 0.0
        self._registered_s = registered_s

    def count(self):
        return sum(at_s <= self.now_s for at_s in self._registered_s)

    def sleep(self, seconds):
        self.now_s += seconds

    def wait(self, expected=None):
        """How many there are when the wait is over."""
        clock = {"monotonic": lambda: self.now_s, "sleep": self.sleep}
        wait_until_settled(self.count, expected=expected, **clock)
        return self.count()


def test_executors_that_come_one_after_another_are_all_waited_for():
    """A large cluster's do not register in the same moment."""
    assert Cluster(5.0, 5.5, 6.3).wait() == 3


def test_a_cluster_whose_size_is_known_is_not_waited_for_any_longer():
    """``spark.executor.instances`` says how many come."""
    cluster = Cluster(1.0, 9.0)
    assert cluster.wait(expected=2) == 2
    assert cluster.now_s < 9.0 + SETTLED_S


def test_a_cluster_without_a_free_core_holds_nobody_up_for_ever():
    """Spark queues the job; it is planned for what is known."""
    cluster = Cluster()
    assert cluster.wait() == 0
    assert REGISTER_S <= cluster.now_s < REGISTER_S + 1


def test_executors_that_come_and_go_hold_nobody_up_for_ever():
    """As where each of them fails to start."""
    cluster = Cluster()
    cluster.count = lambda: int(cluster.now_s * 2) % 2
    cluster.wait()
    assert cluster.now_s < REGISTER_S + 1


class Context:
    """As much of a driver on a cluster as is asked."""

    def __init__(self, **settings):
        self.applicationId = f"app-{id(self)}"
        self.master = "spark://h:7077"
        self.asked = 0
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._jsc = SimpleNamespace(sc=lambda: self)

    def getConf(self):  # noqa: N802 - Spark's
        return SimpleNamespace(getAll=self._settings.items)

    def statusTracker(self):  # noqa: N802 - Spark's
        return self

    def getExecutorInfos(self):  # noqa: N802 - Spark's
        self.asked += 1
        return ["driver", *["executor"] * (self.asked // 2)]

    @property
    def defaultParallelism(self):  # noqa: N802 - Spark's
        return 2 if self.asked < 4 else 8


def test_cores_of_a_cluster_are_counted_when_its_executors_are_there_and_waited_for_once():
    """Later jobs take what Spark counts then."""
    context = Context(spark_executor_instances="2")
    spark = SimpleNamespace(sparkContext=context)
    assert parallelism(spark) == 8
    asked = context.asked
    assert parallelism(spark) == 8
    assert context.asked == asked


@pytest.mark.parametrize(
    "settings", [{"spark_dynamicAllocation_enabled": "true"}, {"spark_default_parallelism": "12"}]
)
def test_nobody_waits_where_the_count_does_not_come_from_executors(settings):
    """Dynamic allocation starts them for tasks; and whoever says a number is believed."""
    context = Context(**settings)
    executors.wait_for_executors(context)
    assert context.asked == 0
