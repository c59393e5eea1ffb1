"""The process Spark forks its Python workers from, with what a worker needs already loaded.

Spark starts it by ``spark.python.daemon.module`` and ends workers that were idle for a minute: the
first record after a quiet time would wait for numba and every kernel again, in each worker.
"""

from __future__ import annotations

import importlib

NEEDED = (
    "pyspark.sql.worker.plan_data_source_read",
    "cordwood.batch.kernels",
    "cordwood.pipeline.key_kernels",
    "cordwood.pipeline.route_kernels",
    "cordwood.pipeline.routing",
    "cordwood.pipeline.route",
)


def main() -> None:
    """Load, then fork workers until Spark hangs up."""
    from pyspark.daemon import manager

    for name in NEEDED:
        importlib.import_module(name)
    manager()


if __name__ == "__main__":
    main()
