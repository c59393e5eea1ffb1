"""Topics as views: what a query needs of them is registered just before it runs.

Every topic is a view of its own name (odd ones are quoted with backticks) with the source's
columns, and ``key_text`` and ``value_text`` beside them, so that ``from_json`` and
``get_json_object`` have something to work on. Only topics a query names become views, and only
columns it names are decoded; a Python source is not told either, so the text is looked at. When in
doubt, all are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cordwood.config import nearest
from cordwood.errors import InvalidOption, UnknownTopic
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.pipeline.frames import COLUMNS, HEADERS
from cordwood.pipeline.options import COMMITTED
from cordwood.pipeline.staging import Yard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXTS: Final = {"key_text": "key", "value_text": "value"}
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COUNT_ALL: Final = re.compile(r"count\s*\(\s*\*\s*\)", re.IGNORECASE)
_UNPACKED: Final = re.compile(r"\b(variant|interval|void)\b")  # Arrow has no such type, or two
_STRING: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'")


def find_topics(query: str, topics: Iterable[str]) -> list[str]:
    """The topics a query names, in order; Spark's names do not care for case, nor does this."""
    code = _STRING.sub("''", query)

    def is_named(topic: str) -> bool:
        word = rf"(?<![\w.-]){re.escape(topic)}(?![\w-])"
        return re.search(word, code, re.IGNORECASE) is not None

    return sorted(filter(is_named, topics))


def find_columns(query: str) -> tuple[str, ...]:
    """The columns a query may use; all of them when it says ``*`` or cannot be told."""
    code = _COUNT_ALL.sub("count(1)", _STRING.sub("''", query))
    words = {word.lower() for word in _WORD.findall(code)}
    if "*" in code or words & {"natural", "describe", "desc", "table", "using"}:
        return tuple(COLUMNS)
    wanted = {TEXTS.get(word, word) for word in words}
    named = tuple(name for name in COLUMNS if name.lower() in wanted)
    return named or ("offset",)


class Topics:
    """A broker's topics as views of a session."""

    def __init__(self, spark: SparkSession, api: BrokerApi, where: Where) -> None:
        self._spark = spark
        self._api = api
        self._where = where
        yard = Yard.of(api, where)
        self._path = yard.data if yard.is_reachable() else None

    def names(self) -> list[str]:
        """Every topic."""
        return sorted(self._api.partition_counts())

    def query(self, text: str) -> DataFrame:
        """A query's result, not yet computed; raises ``InvalidOption`` with Spark's reason."""
        from pyspark.errors import AnalysisException, ParseException

        columns = find_columns(text)
        for topic in find_topics(text, self.names()):
            self.view(topic, columns).createOrReplaceTempView(f"`{topic}`")
        try:
            return self._spark.sql(text)
        except (AnalysisException, ParseException) as error:
            raise InvalidOption(plain_reason(error)) from None

    def view(self, topic: str, columns: Sequence[str] = tuple(COLUMNS)) -> DataFrame:
        """One topic with its text columns."""
        from pyspark.sql import functions as F  # noqa: N812

        options = {**COMMITTED, "subscribe": topic, "columns": ",".join(columns)}
        if HEADERS in columns:
            options["includeHeaders"] = "true"
        if self._where.servers:
            options["kafka.bootstrap.servers"] = self._where.servers
        if self._path:
            options["path"] = self._path
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


def stream_rows(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    """The result row by row, as it is computed; raises ``InvalidOption`` when the query fails.

    Spark hands over one partition at a time. As rows a partition would not fit into the driver's
    Java, so tasks pack it into pages of Arrow's bytes, which do.
    """
    from pyspark.errors import PySparkException

    is_packed = not _UNPACKED.search(frame.schema.simpleString())
    source = frame.mapInArrow(_pack, "page binary") if is_packed else frame
    try:
        for row in source.toLocalIterator(prefetchPartitions=True):
            if is_packed:
                yield from _unpack(row["page"])
            else:
                yield tuple(row)
    except PySparkException as error:
        raise InvalidOption(plain_reason(error)) from None


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
    """The rows of a page; columns by place, as two may have one name."""
    import pyarrow as pa

    for batch in pa.ipc.open_stream(page):
        columns = (column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns)
        yield from zip(*columns, strict=True)


def plain_reason(error: Exception) -> str:
    """Spark's reason without its traceback."""
    text = str(error).split("\n== SQL")[0].split("JVM stacktrace")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("cordwood.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return lines[0] if lines else type(error).__name__
