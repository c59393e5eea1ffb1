"""Registers the data source, so ``spark.read.format("cordwood")`` needs no jar or ``register()``.

Spark imports every module whose name starts with ``pyspark_`` and registers its ``DefaultSource``.
This package contains nothing else.
"""

from cordwood.pipeline.source.source import CordwoodSource as DefaultSource

__all__ = ["DefaultSource"]
