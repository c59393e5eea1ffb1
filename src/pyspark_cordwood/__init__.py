"""Why ``spark.read.format("cordwood")`` needs no ``register()`` and no jar.

Spark imports every module whose name starts with ``pyspark_`` and registers its ``DefaultSource``.
Nothing else lives here.
"""

from cordwood.pipeline.source.source import CordwoodSource as DefaultSource

__all__ = ["DefaultSource"]
