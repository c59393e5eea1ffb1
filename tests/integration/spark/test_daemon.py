"""The process workers are forked from."""

import pytest

from cordwood.pipeline.runtime.tasks import run_tasks

pytestmark = pytest.mark.spark

FEW = 20_000  # objects; numba and pandas alone make ten times as many


def look(_):
    """What a worker's collector has to go through, and what it is spared."""
    import gc
    import sys

    return len(gc.get_objects()), gc.get_freeze_count(), "numba" in sys.modules


def test_a_worker_is_born_with_its_kernels_and_collects_only_its_own(spark):
    """Spark collects garbage after every task: with all that is loaded, for longer than it ran."""
    for own, spared, has_kernels in run_tasks(spark, look, [0, 1]):
        assert has_kernels
        assert own < FEW < spared
