"""The latest state per key of a topic, as Parquet or Delta."""

from cordwood.pipeline.table.job import TableRequest, build_table

__all__ = ["TableRequest", "build_table"]
