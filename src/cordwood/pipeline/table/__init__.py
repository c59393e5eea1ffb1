"""The latest state per key of a topic, as Parquet or Delta."""
