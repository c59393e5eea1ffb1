"""The process from which Spark forks its Python workers, with modules and kernels preloaded.

Spark starts it through ``spark.python.daemon.module``, one process per kind of worker. Spark ends
workers after a minute of idleness, so without preloading the first record after a pause would wait
until each new worker has loaded numba and every kernel. Workers also run the garbage collector
after every task; ``gc.freeze`` excludes everything loaded here, because traversing it would often
take longer than the task.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

TASKS: Final = "pyspark.worker"  # the kind that runs tasks; other kinds only plan reads
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
    "cordwood.pipeline.route.source",
)


def main() -> None:
    """Load the modules, then fork workers until Spark closes the connection."""
    from pyspark.daemon import manager

    kind = sys.argv[1]
    for name in (kind, *(NEEDED if kind == TASKS else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
