"""How long a job waits for the executors of a cluster before it counts their cores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cordwood.pipeline.runtime import executors
from cordwood.pipeline.runtime.executors import REGISTER_S, SETTLED_S, wait_until_settled
from cordwood.pipeline.runtime.session import parallelism


class Cluster:
    """A fake clock that ``sleep`` advances, with executors that register at given times."""

    def __init__(self, *registered_s):
        self.now_s = 0.0
        self._registered_s = registered_s

    def count(self):
        return sum(at_s <= self.now_s for at_s in self._registered_s)

    def sleep(self, seconds):
        self.now_s += seconds

    def wait(self, expected=None):
        """Wait, then return how many executors are registered."""
        clock = {"monotonic": lambda: self.now_s, "sleep": self.sleep}
        wait_until_settled(self.count, expected=expected, **clock)
        return self.count()


def test_executors_that_come_one_after_another_are_all_waited_for():
    """The wait continues while executors register one after another."""
    assert Cluster(5.0, 5.5, 6.3).wait() == 3


def test_a_cluster_whose_size_is_known_is_not_waited_for_any_longer():
    """The wait ends as soon as ``spark.executor.instances`` executors are registered."""
    cluster = Cluster(1.0, 9.0)
    assert cluster.wait(expected=2) == 2
    assert cluster.now_s < 9.0 + SETTLED_S


def test_a_cluster_without_a_free_core_holds_nobody_up_for_ever():
    """If no executor registers, the wait ends after ``REGISTER_S``."""
    cluster = Cluster()
    assert cluster.wait() == 0
    assert REGISTER_S <= cluster.now_s < REGISTER_S + 1


def test_executors_that_come_and_go_hold_nobody_up_for_ever():
    """If the number of executors keeps changing, the wait still ends after ``REGISTER_S``."""
    cluster = Cluster()
    cluster.count = lambda: int(cluster.now_s * 2) % 2
    cluster.wait()
    assert cluster.now_s < REGISTER_S + 1


class Context:
    """A fake ``SparkContext`` with executors that register while it is polled."""

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
    """Cores are counted once the executors are registered, and only the first job waits."""
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
    """With dynamic allocation or a configured parallelism, the job does not wait for executors."""
    context = Context(**settings)
    executors.wait_for_executors(context)
    assert context.asked == 0
