"""Topics as views: what a statement needs of them is registered just before it runs.

Every topic is a view of its own name (odd ones are quoted with backticks) with the source's
columns, and ``key_text`` and ``value_text`` beside them, so that ``from_json`` and
``get_json_object`` have something to work on. Only topics a statement names become views, loaded
afresh: Spark would go on reading what was there at the last statement. Only columns it names are
decoded, and where it reads a topic once its filters narrow what is read (``statement``).

What a command leaves behind, such as a view of the user's, names topics in later statements that
do not: from then on those topics are registered before every statement, whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cordwood.config import MIB, nearest
from cordwood.errors import CordwoodError, InvalidOption, UnknownTopic
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.failure_reasons import failure, is_late, plain_reason
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.session import told_parallelism
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.source.options import COMMITTED
from cordwood.pipeline.source.schema import COLUMNS, HEADERS
from cordwood.pipeline.sql.statement import TEXTS, Statement, read_statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE_BYTES: Final = 8 * MIB  # of a topic: rows of a task come when all of it has been read
FEW_ROWS: Final = 1000
_UNPACKED: Final = re.compile(r"\b(variant|interval|void)\b")  # Arrow has no such type, or two
_BY_ROW: Final = {"Project", "Filter", "SubqueryAlias", "View", "DataSourceV2Relation"}


class TopicViews:
    """A broker's topics as views of a session."""

    def __init__(self, spark: SparkSession, api: BrokerApi, where: BrokerAddress) -> None:
        self._spark = spark
        self._api = api
        self._where = where
        staging = StagingTarget.of(api, where)
        self._path = staging.data if staging.is_reachable() else None
        self._kept: frozenset[str] = frozenset()  # named by what commands left in the session

    def names(self) -> list[str]:
        """Every topic."""
        return sorted(self._api.partition_counts())

    def query(self, text: str) -> DataFrame:
        """A statement's result, not yet computed; raises ``InvalidOption`` with Spark's reason."""
        from pyspark.errors import AnalysisException, ParseException

        names = self.names()
        try:
            said = read_statement(self._spark, text, names)
            self._register(said)
            with labelled(self._spark, text):  # a command runs at once
                frame = self._spark.sql(text)
            if said.is_query and said.topics and _is_by_row(frame):
                self._register(said, in_pages=True)
                frame = self._spark.sql(text)
        except AnalysisException as error:
            raise _refusal(error, names) from None
        except ParseException as error:
            raise InvalidOption(plain_reason(error)) from None
        self._forget(said)
        return frame

    def _register(self, said: Statement, *, in_pages: bool = False) -> None:
        """Fresh views of what the statement reads, and of what lies behind the user's own views."""
        if not said.is_query:
            self._kept |= said.topics
        for topic in said.topics | self._kept:
            if topic not in self._kept:
                frame = self.view(topic, said.columns, **self._narrowing(topic, said, in_pages))
            elif self._is_cached(topic):
                continue  # by CACHE TABLE: it stays as it is until UNCACHE TABLE
            else:
                frame = self.view(topic)
            frame.createOrReplaceTempView(f"`{topic}`")

    def _is_cached(self, topic: str) -> bool:
        catalog = self._spark.catalog
        return bool(catalog.tableExists(f"`{topic}`") and catalog.isCached(f"`{topic}`"))

    def _forget(self, said: Statement) -> None:
        """A narrowed view is for its own query alone."""
        for topic in said.topics - self._kept:
            self._spark.catalog.dropTempView(topic)

    def _narrowing(self, topic: str, said: Statement, in_pages: bool) -> dict[str, str]:
        options = {"filterPushdown": "true"} if topic in said.alone else {}
        if in_pages:
            options["maxRecordsPerPartition"] = str(self._page_records(topic))
        return options

    def _page_records(self, topic: str) -> int:
        """How many records of a topic are a page."""
        parts = self._api.topic(topic)["partitions"]
        offsets: int = sum(part["high_watermark"] - part["log_start_offset"] for part in parts)
        size_bytes: int = sum(part["size_bytes"] for part in parts)
        return max(1, PAGE_BYTES * offsets // max(1, size_bytes))

    def view(self, topic: str, columns: Sequence[str] = tuple(COLUMNS), **more: str) -> DataFrame:
        """One topic with its text columns; more of the source's options may be said."""
        from pyspark.sql import functions as F  # noqa: N812

        options = {**COMMITTED, "subscribe": topic, "columns": ",".join(columns), **more}
        if HEADERS in columns:
            options["includeHeaders"] = "true"
        if self._where.servers:
            options["kafka.bootstrap.servers"] = self._where.servers
        if self._path:
            options["path"] = self._path
        if told := told_parallelism(self._spark):
            options["parallelism"] = str(told)
        frame = self._spark.read.format("cordwood").options(**options).load()
        texts = [
            F.col(name).cast("string").alias(text)
            for text, name in TEXTS.items()
            if name in columns
        ]
        return frame.select("*", *texts)

    def schema(self, topic: str) -> list[tuple[str, str]]:
        """The columns of a topic's view and their types; raises ``UnknownTopic``."""
        if topic not in (names := self.names()):
            raise UnknownTopic(f"there is no topic {topic}{nearest(topic, names)}")
        return [*COLUMNS.items(), *((name, "string") for name in TEXTS)]


def _is_by_row(frame: DataFrame) -> bool:
    """Whether rows come out of tasks as they are read; what is sorted or added up waits anyway."""

    def is_simple(plan: Any) -> bool:
        children = plan.children()
        return plan.getClass().getSimpleName() in _BY_ROW and all(
            is_simple(children.apply(index)) for index in range(children.size())
        )

    return is_simple(frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - no public way


def stream_rows(frame: DataFrame, label: str = "rows") -> Iterator[tuple[Any, ...]]:
    """The result row by row, as it is computed; raises ``InvalidOption`` when the query fails.

    ``label`` is what Spark's UI calls it. Spark hands over one partition at a time. As rows a
    partition would not fit into the driver's Java, so tasks pack it into pages of Arrow's bytes,
    which do.
    """
    from pyspark.errors import PySparkException

    is_packed = not _UNPACKED.search(frame.schema.simpleString())
    try:
        with labelled(frame.sparkSession, label):
            frame = _settled(frame)
            source = _packed(frame) if is_packed else frame
            for row in source.toLocalIterator(prefetchPartitions=True):
                if is_packed:
                    yield from _unpack(row["page"])
                else:
                    yield tuple(row)
    except PySparkException as error:
        if is_late(error):
            raise failure(error) from None
        raise InvalidOption(plain_reason(error)) from None


def _settled(frame: DataFrame) -> DataFrame:
    """A result known to be short, computed.

    Spark then looks at one partition, and at more only if it must; as pages every one is looked at.
    """
    from pyspark.sql import DataFrame

    plan, session = frame._jdf, frame.sparkSession  # noqa: SLF001 - rows stay in Java
    most = plan.queryExecution().analyzed().maxRows()
    if not most.isDefined() or most.get() > FEW_ROWS:
        return frame
    rows = session._jsparkSession.createDataFrame(plan.collectAsList(), plan.schema())  # noqa: SLF001
    return DataFrame(rows, session)


def _packed(frame: DataFrame) -> DataFrame:
    """Pages of the frame; its columns by place, as two may have one name."""
    by_place = frame.toDF(*map(str, range(len(frame.columns))))
    return by_place.mapInArrow(_pack, "page binary")


def _pack(batches: Iterator[Any]) -> Iterator[Any]:
    """Every batch of rows as one row: a page of Arrow's stream format, compressed."""
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for batch in batches:
        page = pa.BufferOutputStream()
        with pa.ipc.new_stream(page, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"page": [page.getvalue().to_pybytes()]})


def _unpack(page: bytes) -> Iterator[tuple[Any, ...]]:
    """The rows of a page."""
    import pyarrow as pa

    for batch in pa.ipc.open_stream(page):
        columns = (column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns)
        yield from zip(*columns, strict=True)


def _refusal(error: Any, topics: Sequence[str]) -> CordwoodError:
    """What is missing is most often a topic, misspelt; the rest in Spark's words."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return InvalidOption(plain_reason(error))
    name = error.getMessageParameters()["relationName"].replace("`", "")
    if name in topics:
        return UnknownTopic(f"topic {name} is written in backticks: `{name}`")
    return UnknownTopic(f"there is no topic {name}{nearest(name, topics)}")
