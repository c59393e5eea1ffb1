"""A changelog topic as a table: the newest value of each key, deletions left out.

    python examples/cdc_table.py 127.0.0.1:9092 users table.parquet

Change data capture writes one record per change, keyed by the row's id; a null value deletes it.
What is in the table now is the newest record of each key.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, max_by
from pyspark.sql.functions import max as newest

from cordwood.spark import session, topic

ROW = "name string, city string"


def table_of(changes: DataFrame) -> DataFrame:
    """Newest change per key; offsets order the changes of a key, as a key keeps its partition."""
    latest = changes.groupBy("key").agg(
        max_by("value", "offset").alias("value"), newest("offset").alias("offset")
    )
    living = latest.where(col("value").isNotNull())
    row = from_json(col("value").cast("string"), ROW)
    return living.select(col("key").cast("string").alias("id"), row.alias("row")).select(
        "id", "row.*"
    )


def main(broker: str, name: str, target: str) -> None:
    """Write the table as Parquet and print it."""
    spark = session("example")
    changes = topic(spark, name, broker=broker, columns=["key", "value", "offset"])
    table_of(changes).write.mode("overwrite").parquet(target)
    for row in spark.read.parquet(target).orderBy("id").collect():
        print(row.id, row.name, row.city)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
