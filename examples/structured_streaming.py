"""Structured Streaming over topics: read a stream, work on it, write it back exactly once.

    python examples/structured_streaming.py 127.0.0.1:9092 checkpoint

Run it twice: the second run goes on where the first stopped, and nothing is written twice.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, upper

from cordwood.spark import session, topic, topic_stream


def shouted(lines: DataFrame) -> DataFrame:
    """Rows for the sink: it wants ``value`` and takes ``key``."""
    text = col("value").cast("string")
    return lines.where(text != "").select("key", upper(text).alias("value"))


def main(broker: str, checkpoint: str) -> None:
    """Everything there is in ``lines`` goes to ``shouted``, then the stream ends."""
    spark = session("example")
    lines = topic_stream(
        spark,
        "lines",
        broker=broker,
        startingOffsets="earliest",
        commitGroup="shouting",  # its lag shows in `cordwood group describe shouting`
    )
    query = (
        shouted(lines)
        .writeStream.format("cordwood")
        .option("kafka.bootstrap.servers", broker)
        .option("topic", "shouted")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # leave this out to run for ever
        .start()
    )
    query.awaitTermination()
    rows = topic(spark, "shouted", broker=broker, columns=["offset", "value"]).collect()
    for row in sorted(rows):
        print(row.offset, row.value.decode())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
