"""Dead letters as DataFrames: their columns, and what a replay makes of them.

Expressions of a replay may use the columns that ``letters`` adds: text, reason and source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cordwood.decide import deadletters, provenance
from cordwood.errors import InvalidOption
from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.pipeline.runtime.failure_reasons import failure, is_late, our_error, patiently
from cordwood.pipeline.runtime.staging import StagingTarget
from cordwood.pipeline.runtime.topic_reads import read_options, read_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")

REPLAY_ID: Final = "replay.id"
OURS: Final = ("dlq.", "src.", "replay.")  # prefixes of headers about an earlier routing or replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which dead letters to replay, where to, and how to rewrite them."""

    topic: str
    to: str
    where: str | None = None
    set_key: str | None = None
    set_value: str | None = None
    name: str = ""

    @property
    def id(self) -> str:
        """Hash of all fields: the same replay always has the same id."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def reader(self) -> str:
        """The reader whose cursor is the replay's progress; also the query name of deliveries."""
        return f"replay-{self.id}"


def letters(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read dead letters with the columns that expressions may use: text, reason and source."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    frame = read_topics(spark, {**options, "includeHeaders": "true"})

    def first_of(*names: str) -> Any:
        return F.coalesce(*(header_text(name) for name in names))

    return frame.select(
        "*",
        F.col("key").cast("string").alias("key_text"),
        F.col("value").cast("string").alias("value_text"),
        header_text(deadletters.REASON).alias("reason"),
        header_text(deadletters.DETAIL).alias("detail"),
        header_text(deadletters.SOURCE).alias("source"),
        first_of(deadletters.TOPIC, provenance.SOURCE_TOPIC).alias("source_topic"),
        first_of(deadletters.PARTITION, provenance.SOURCE_PARTITION)
        .cast("int")
        .alias("source_partition"),
        first_of(deadletters.OFFSET, provenance.SOURCE_OFFSET)
        .cast("bigint")
        .alias("source_offset"),
    )


def header_text(name: str) -> Any:
    """Return the last header of this name as text, or null; a name may occur more than once."""
    from pyspark.sql import functions as F  # noqa: N812

    same = F.filter("headers", lambda each: each["key"] == name)
    return F.try_element_at(F.transform(same, lambda each: each["value"].cast("string")), F.lit(-1))


def rewritten(dead_letters: DataFrame, replay: Replay) -> DataFrame:
    """Return the rows a replay selects, in the sink's format, with the old key and value.

    Raises ``InvalidOption`` if an expression is not valid.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812

    try:
        chosen = dead_letters.where(replay.where) if replay.where else dead_letters
        is_own = "exists(array({}), p -> startswith(h.key, p))".format(
            ", ".join(f"'{prefix}'" for prefix in OURS)
        )
        kept = F.expr(f"filter(coalesce(headers, array()), h -> NOT {is_own})")
        mark = F.struct(
            F.lit(REPLAY_ID).alias("key"), F.lit(replay.id.encode()).cast("binary").alias("value")
        )
        shaped = chosen.select(
            "partition",
            "offset",
            F.col("key_text").alias("old_key"),
            F.col("value_text").alias("old_value"),
            _as_bytes(chosen, replay.set_key or "key").alias("key"),
            _as_bytes(chosen, replay.set_value or "value").alias("value"),
            F.concat(kept, F.array(mark)).alias("headers"),
        )
        shaped.schema  # noqa: B018 - Spark Connect analyses the expressions only now
    except (AnalysisException, ParseException) as error:
        raise InvalidOption(f"the expression is not valid: {_first_line(error)}") from None
    return shaped


def _as_bytes(chosen: DataFrame, expression: str) -> Any:
    """Cast an expression to bytes; anything but binary becomes text first."""
    from pyspark.sql import functions as F  # noqa: N812

    column = F.expr(expression)
    kind = chosen.select(column.alias("it")).schema[0].dataType.simpleString()
    return column if kind == "binary" else column.cast("string").cast("binary")


def preview(spark: SparkSession, api: BrokerApi, replay: Replay) -> DataFrame:
    """Return the old and new key and value of every letter the replay would select."""
    from pyspark.sql import functions as F  # noqa: N812

    options = read_options(StagingTarget.of(api), replay.topic)
    return rewritten(letters(spark, options), replay).select(
        "partition",
        "offset",
        "old_key",
        F.col("key").cast("string").alias("new_key"),
        "old_value",
        F.col("value").cast("string").alias("new_value"),
    )


def run_expressions(job: Callable[[], Result]) -> Result:
    """Run a Spark job over letters; raises ``InvalidOption`` if an expression fails on a row."""
    from pyspark.errors import PySparkException

    try:
        return patiently(job)
    except PySparkException as error:
        if is_late(error) or our_error(error) is not None:
            raise failure(error) from None
        raise InvalidOption(f"a dead letter could not be rewritten: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
