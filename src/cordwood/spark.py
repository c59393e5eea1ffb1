"""Topics in Spark, in two lines.

    spark = cordwood.spark.session()
    orders = cordwood.spark.topic(spark, "orders", path="data")

``session`` starts Spark embedded, on a cluster or through Spark Connect, with settings that suit
cordwood; ``topic`` is ``spark.read.format("cordwood")`` with keyword arguments for options. Any
other Spark session works as well: the data source registers itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cordwood.pipeline.frames import ddl, parse_columns
from cordwood.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["session", "topic", "topic_stream"]


def session(
    app: str = "cordwood",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """A running session: embedded, on ``master``, or through Spark Connect at ``remote``."""
    return open_session(app, master=master, conf=conf, remote=remote)


def topic(
    spark: SparkSession,
    name: str,
    *,
    path: str | None = None,
    broker: str | None = None,
    columns: Iterable[str] = (),
    **options: object,
) -> DataFrame:
    """The topic's records; ``columns`` decodes only those, ``options`` are the source's."""
    where = {"path": path, "kafka.bootstrap.servers": broker}
    return _load(spark.read, {"subscribe": name, **where, **options}, columns)


def topic_stream(
    spark: SparkSession,
    name: str,
    *,
    path: str | None = None,
    broker: str | None = None,
    columns: Iterable[str] = (),
    **options: object,
) -> DataFrame:
    """The topic as a stream, from now on unless ``startingOffsets`` says otherwise."""
    where = {"path": path, "kafka.bootstrap.servers": broker}
    return _load(spark.readStream, {"subscribe": name, **where, **options}, columns)


def _load(reader: Any, options: Mapping[str, object], columns: Iterable[str]) -> DataFrame:
    said = {key: value for key, value in options.items() if value is not None}
    reader = reader.format("cordwood").options(**said)
    wanted = ",".join(columns)
    return (reader.schema(ddl(parse_columns(wanted))) if wanted else reader).load()
