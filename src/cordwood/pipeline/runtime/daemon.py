"""The process Spark forks its Python workers from, with what a worker needs already loaded.

Spark starts it by ``spark.python.daemon.module``, one for each kind of worker, and ends workers
that were idle for a minute: the first record after a quiet time would wait for numba and every
kernel again, in each worker. After every task a worker collects its garbage; what was loaded here
is left out of that, or each task would spend longer on it than many spend on their work.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

TASKS: Final = "pyspark.worker"  # the kind that runs tasks; others plan a read, and are told little
NEEDED: Final = (
    "pandas",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "cordwood.batch.kernels.batches",
    "cordwood.batch.kernels.digests",
    "cordwood.batch.kernels.keys",
    "cordwood.batch.kernels.routes",
    "cordwood.pipeline.route.executor",
    "cordwood.pipeline.route.query",
)


def main() -> None:
    """Load, then fork workers until Spark hangs up."""
    from pyspark.daemon import manager

    kind = sys.argv[1]
    for name in (kind, *(NEEDED if kind == TASKS else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
