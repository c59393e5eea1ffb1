"""Spark schemas for tests."""

from __future__ import annotations

from typing import Any


def full_schema() -> Any:
    """Return every column of the source, including headers."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    header = StructType().add("key", StringType()).add("value", BinaryType())
    return (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
        .add("headers", ArrayType(header))
    )
