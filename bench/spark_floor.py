"""The upper bound for any Python data source: prepared batches, with no work left to do.

The batches are those that our source would send. They are decoded in advance and stored as Arrow
streams, one file per task; a task maps its file and yields the batches. What remains is Spark's own
cost: starting tasks, the socket from Python to Java, and converting columns to rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMAT = "bench_floor"


def prepare(spark: Any, data: str, columns: list[str], directory: Path) -> Callable[[], Any]:
    """Decode a topic once into one file per task, and return a function that makes DataFrames."""
    import pyarrow as pa

    from cordwood.pipeline.source.options import parse_options
    from cordwood.pipeline.source.source import TopicReader
    from cordwood.spark import topic

    schema = topic(spark, "bench", path=data, columns=columns).schema
    options = parse_options({"subscribe": "bench", "path": data}, streaming=False)
    reader = TopicReader(options, schema)
    directory.mkdir()
    for number, split in enumerate(reader.partitions()):
        batches = list(reader.read(split))
        with pa.ipc.new_stream(str(directory / str(number)), batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
    spark.dataSource.register(_source())
    return lambda: spark.read.format(FORMAT).schema(schema).load(str(directory))


def _source() -> Any:
    """Return a local class, which Spark sends by value: workers cannot import ``bench``."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class FloorReader(DataSourceReader):
        def __init__(self, path):
            self._path = path

        def partitions(self):
            from pathlib import Path

            return [InputPartition(str(file)) for file in sorted(Path(self._path).iterdir())]

        def read(self, partition):
            import pyarrow as pa

            with pa.memory_map(partition.value) as file:
                yield from pa.ipc.open_stream(file)

    class Floor(DataSource):
        @classmethod
        def name(cls):
            return FORMAT

        def reader(self, schema):  # noqa: ARG002 - Spark names it
            return FloorReader(self.options["path"])

    return Floor
