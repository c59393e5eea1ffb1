"""Read topics as Spark DataFrames, in two lines.

    spark = cordwood.spark.session()
    orders = cordwood.spark.topic(spark, "orders", path="data")

``session`` opens a Spark session with cordwood's settings: embedded, on a cluster or by Spark
Connect. ``topic`` is ``spark.read.format("cordwood")`` with keyword arguments for its options. Any
other Spark session works as well, because the data source registers itself. Importing this module
before that session starts makes Spark look the source up with this Python, unless you have chosen
another one (``PYSPARK_PYTHON``, ``PYSPARK_DRIVER_PYTHON``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from cordwood.pipeline.runtime.session import known_parallelism, open_session
from cordwood.pipeline.runtime.tls_options import encode_tls
from cordwood.pipeline.runtime.worker_python import use_this_python
from cordwood.pipeline.source.filters import ceil_ms, floor_ms
from cordwood.pipeline.source.offsets import parse_offsets
from cordwood.pipeline.source.schema import ddl, parse_columns
from cordwood.tls import ClientTls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["lag", "session", "topic", "topic_stream"]

use_this_python()  # before Spark's Java starts, which inherits the environment


def session(
    app: str = "cordwood",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """Open a session: embedded, on ``master``, or by Spark Connect at ``remote``."""
    return open_session(app, master=master, conf=conf, remote=remote)


def topic(
    spark: SparkSession,
    name: str,
    *,
    path: str | None = None,
    broker: str | None = None,
    tls: ClientTls | None = None,
    columns: Iterable[str] = (),
    partitions: Iterable[int] | None = None,
    start: int | None = None,
    end: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **options: object,
) -> DataFrame:
    """The records of a topic; ``columns`` limits decoding, ``options`` are the source's options.

    ``partitions``, the offsets ``start`` (inclusive) to ``end`` (exclusive) and the time ``since``
    (inclusive) limit what is read at all, while a filter on the DataFrame may read everything
    first. ``until`` (exclusive) only filters rows. A naive datetime is UTC.
    """
    from pyspark.sql import functions as F  # noqa: N812

    chosen: dict[str, object] = {"path": path, "kafka.bootstrap.servers": broker}
    chosen |= encode_tls(tls)
    chosen |= {"parallelism": known_parallelism(spark)}
    chosen |= {"fromOffset": start, "beforeOffset": end}
    chosen |= {"subscribe": name} if partitions is None else {"assign": _assign(name, partitions)}
    if since is not None:  # start at the first such record; later ones may still be older
        chosen["startingTimestamp"] = floor_ms(since)
        chosen["startingOffsetsByTimestampStrategy"] = "latest"
    wanted = tuple(columns)
    if since is None and until is None:
        return _load(spark.read, {**chosen, **options}, wanted)
    timed = wanted if not wanted or "timestamp" in wanted else (*wanted, "timestamp")
    frame = _load(spark.read, {**chosen, **options}, timed)
    if since is not None:
        frame = frame.filter(F.col("timestamp") >= F.timestamp_millis(F.lit(ceil_ms(since))))
    if until is not None:
        frame = frame.filter(F.col("timestamp") < F.timestamp_millis(F.lit(ceil_ms(until))))
    return frame.select(*wanted) if wanted else frame


def _assign(name: str, partitions: Iterable[int]) -> str:
    return json.dumps({name: list(partitions)})


def topic_stream(
    spark: SparkSession,
    name: str,
    *,
    path: str | None = None,
    broker: str | None = None,
    tls: ClientTls | None = None,
    columns: Iterable[str] = (),
    **options: object,
) -> DataFrame:
    """The topic as a stream; starts at the end of the log unless ``startingOffsets`` is set."""
    where: dict[str, object] = {"path": path, "kafka.bootstrap.servers": broker}
    where |= encode_tls(tls)
    where["parallelism"] = known_parallelism(spark)
    return _load(spark.readStream, {"subscribe": name, **where, **options}, columns)


def lag(query: StreamingQuery) -> dict[str, int]:
    """The number of offsets that a running query lags in each partition, as of its last batch.

    Computed from the offsets in Spark's progress report, because Spark reports no metrics for a
    Python data source and describes it only by its Java object.
    """
    waiting: dict[str, int] = {}
    for source in (query.lastProgress or {}).get("sources", ()):
        ends = [source.get(name) for name in ("endOffset", "latestOffset")]
        if all(ends):
            done, latest = (parse_offsets(_offsets(end)) for end in ends)
            waiting |= {str(tp): max(0, end - done.get(tp, 0)) for tp, end in latest.items()}
    return waiting


def _offsets(offsets: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", json.loads(offsets) if isinstance(offsets, str) else offsets)


def _load(reader: Any, options: Mapping[str, object], columns: Iterable[str]) -> DataFrame:
    given = {key: value for key, value in options.items() if value is not None}
    reader = reader.format("cordwood").options(**given)
    wanted = ",".join(columns)
    return (reader.schema(ddl(parse_columns(wanted))) if wanted else reader).load()
