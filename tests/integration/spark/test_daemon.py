"""The daemon process from which Spark forks Python workers."""

import pytest

from cordwood.pipeline.runtime.tasks import run_tasks

pytestmark = pytest.mark.spark

FEW = 20_000  # objects; numba and pandas alone create ten times as many


def look(_):
    """Return the tracked and the frozen object counts, and whether numba is loaded."""
    import gc
    import sys

    return len(gc.get_objects()), gc.get_freeze_count(), "numba" in sys.modules


def test_a_worker_is_born_with_its_kernels_and_collects_only_its_own(spark):
    """Workers start with numba loaded and its objects frozen, so garbage collection stays fast."""
    for own, spared, has_kernels in run_tasks(spark, look, [0, 1]):
        assert has_kernels
        assert own < FEW < spared
