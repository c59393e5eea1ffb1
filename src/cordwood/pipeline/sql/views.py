"""Register topics as temporary views just before the SQL statement that uses them runs.

Every topic is a view of the same name (unusual names need backticks). It has the source's columns
plus ``key_text`` and ``value_text``, so that ``from_json`` and ``get_json_object`` can be applied.
Only topics that a statement names become views. They are loaded again for each statement, because
Spark would otherwise keep reading the offsets of the previous one. Only columns that the statement
names are decoded, and if it reads a topic once, its filters are pushed down (``statement``).

A command may create objects in the session, such as a user's view, through which later statements
read topics without naming them. So topics that a command names are registered with all columns and
without pushdown before every later statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cordwood.config import MIB, nearest
from cordwood.errors import CordwoodError, InvalidOption, UnknownTopic
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.failure_reasons import failure, is_late, plain_reason
from cordwood.pipeline.runtime.job_labels import labelled
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.topic_reads import read_options, read_topics
from cordwood.pipeline.source.schema import COLUMNS, HEADERS
from cordwood.pipeline.sql.statement import TEXTS, Statement, read_statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE_BYTES: Final = 8 * MIB  # read per task, as its rows arrive only after all of it is read
FEW_ROWS: Final = 1000
_UNPACKED: Final = re.compile(r"\b(variant|interval|void)\b")  # no such Arrow type, or two
_BY_ROW: Final = {"Project", "Filter", "SubqueryAlias", "View", "DataSourceV2Relation"}


class TopicViews:
    """The topics of a broker as temporary views of a Spark session."""

    def __init__(
        self, spark: SparkSession, api: BrokerApi, *, page_bytes: int = PAGE_BYTES
    ) -> None:
        self._spark = spark
        self._api = api
        self._target = StagingTarget.of(api)
        self._page_bytes = page_bytes
        self._kept: frozenset[str] = frozenset()  # named by commands; later ones may use them

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._api.partition_counts())

    def query(self, text: str) -> DataFrame:
        """Plan a statement; its result is lazy. Raises ``InvalidOption`` or ``UnknownTopic``."""
        from pyspark.errors import AnalysisException, ParseException

        names = self.names()
        try:
            statement = read_statement(self._spark, text, names)
            self._register(statement)
            with labelled(self._spark, text):  # a command runs immediately
                frame = self._spark.sql(text)
            if statement.is_query and statement.topics and _is_by_row(frame):
                self._register(statement, in_pages=True)
                frame = self._spark.sql(text)
        except AnalysisException as error:
            raise _refusal(error, names) from None
        except ParseException as error:
            raise InvalidOption(plain_reason(error)) from None
        self._forget(statement)
        return frame

    def _register(self, statement: Statement, *, in_pages: bool = False) -> None:
        """Create the views of the statement's topics, and of topics that commands have named."""
        if not statement.is_query:
            self._kept |= statement.topics
        for topic in statement.topics | self._kept:
            if topic not in self._kept:
                frame = self.view(
                    topic, statement.columns, **self._narrowing(topic, statement, in_pages)
                )
            elif self._is_cached(topic):
                continue  # CACHE TABLE keeps it unchanged until UNCACHE TABLE
            else:
                frame = self.view(topic)
            frame.createOrReplaceTempView(f"`{topic}`")

    def _is_cached(self, topic: str) -> bool:
        catalog = self._spark.catalog
        return bool(catalog.tableExists(f"`{topic}`") and catalog.isCached(f"`{topic}`"))

    def _forget(self, statement: Statement) -> None:
        """Drop the views that are valid only for this statement."""
        for topic in statement.topics - self._kept:
            self._spark.catalog.dropTempView(topic)

    def _narrowing(self, topic: str, statement: Statement, in_pages: bool) -> dict[str, str]:
        options = {"filterPushdown": "true"} if topic in statement.alone else {}
        if in_pages:
            options["maxRecordsPerPartition"] = str(self._page_records(topic))
        return options

    def _page_records(self, topic: str) -> int:
        """The number of records of a topic that fill about one page."""
        parts = self._api.topic(topic).partitions
        offsets: int = sum(part.high_watermark - part.log_start_offset for part in parts)
        size_bytes: int = sum(part.size_bytes for part in parts)
        return max(1, self._page_bytes * offsets // max(1, size_bytes))

    def view(self, topic: str, columns: Sequence[str] = tuple(COLUMNS), **more: str) -> DataFrame:
        """A DataFrame of one topic with its text columns; ``more`` are options of the source."""
        from pyspark.sql import functions as F  # noqa: N812

        options = read_options(self._target, topic, columns=",".join(columns), **more)
        if HEADERS in columns:
            options["includeHeaders"] = "true"
        frame = read_topics(self._spark, options)
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
    """Whether the plan only selects and filters rows, so that it has no sort or aggregate."""

    def is_simple(plan: Any) -> bool:
        children = plan.children()
        return plan.getClass().getSimpleName() in _BY_ROW and all(
            is_simple(children.apply(index)) for index in range(children.size())
        )

    return is_simple(frame._jdf.queryExecution().analyzed())  # noqa: SLF001 - no public API


def stream_rows(
    frame: DataFrame, label: str = "rows", *, few_rows: int = FEW_ROWS
) -> Iterator[tuple[Any, ...]]:
    """Yield the result row by row as it is computed; raises ``InvalidOption`` if the query fails.

    ``label`` is the name in Spark's UI. A result known to have at most ``few_rows`` rows is
    computed without packing. Spark returns one partition at a time. A whole partition of
    rows may not fit into the memory of the driver's JVM, so tasks pack rows into compressed Arrow
    pages, which take less.
    """
    from pyspark.errors import PySparkException

    is_packed = not _UNPACKED.search(frame.schema.simpleString())
    try:
        with labelled(frame.sparkSession, label):
            frame = _computed_if_few(frame, few_rows)
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


def _computed_if_few(frame: DataFrame, few_rows: int) -> DataFrame:
    """Compute a result that is known to have few rows; returns other results unchanged.

    Spark then reads one partition, and more only if needed. Packing pages reads every partition.
    """
    from pyspark.sql import DataFrame

    plan, session = frame._jdf, frame.sparkSession  # noqa: SLF001 - rows stay in Java
    most = plan.queryExecution().analyzed().maxRows()
    if not most.isDefined() or most.get() > few_rows:
        return frame
    rows = session._jsparkSession.createDataFrame(plan.collectAsList(), plan.schema())  # noqa: SLF001
    return DataFrame(rows, session)


def _packed(frame: DataFrame) -> DataFrame:
    """Pack the frame into pages; columns are named by position, as two may have the same name."""
    by_place = frame.toDF(*map(str, range(len(frame.columns))))
    return by_place.mapInArrow(_pack, "page binary")


def _pack(batches: Iterator[Any]) -> Iterator[Any]:
    """Pack every batch of rows into one row: a compressed page in Arrow's stream format."""
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for batch in batches:
        page = pa.BufferOutputStream()
        with pa.ipc.new_stream(page, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"page": [page.getvalue().to_pybytes()]})


def _unpack(page: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a page."""
    import pyarrow as pa

    for batch in pa.ipc.open_stream(page):
        columns = (column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns)
        yield from zip(*columns, strict=True)


def _refusal(error: Any, topics: Sequence[str]) -> CordwoodError:
    """Convert Spark's error; an unknown table is reported as an unknown or misspelt topic."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return InvalidOption(plain_reason(error))
    name = error.getMessageParameters()["relationName"].replace("`", "")
    if name in topics:
        return UnknownTopic(f"topic {name} is written in backticks: `{name}`")
    return UnknownTopic(f"there is no topic {name}{nearest(name, topics)}")
