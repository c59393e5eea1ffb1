"""``table``: the latest state per key of a changelog topic, as files other tools read.

    <out>/current              → versions/<n>, moved over at once: a reader sees the old or the new
    <out>/versions/<n>/        Parquet files, and _cordwood.json: how far the topic was read
    <out>/_delta_log …         instead, with the format delta

Run again, only what was appended since is read, and laid over the table there is. Doing that twice
gives the same table, so a run that dies is simply run again. The table is a registered reader of
its topic: compaction keeps tombstones until it has passed them, so no deleted key stays in it.

A key lives in one partition, as with Kafka's partitioner; in two partitions it is two rows.
Records without a key have no place in a table.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cordwood.errors import ConfigError, UnavailableError
from cordwood.model import TopicPartition
from cordwood.pipeline.archive import source_options
from cordwood.pipeline.broker import BrokerApi, Where
from cordwood.pipeline.logs import open_log
from cordwood.pipeline.options import COMMITTED
from cordwood.pipeline.reasons import plain_reason
from cordwood.pipeline.tasks import followed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE: Final = "_cordwood.json"
CURRENT: Final = "current"
VERSIONS: Final = "versions"
Progress = Callable[[str, int, int], None]  # stage, offsets done with, offsets in all
KEPT: Final = 2  # versions: the one in use, and the one readers may still be in


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Which table, where."""

    topic: str
    out: Path
    form: str = "parquet"
    as_of_ms: int | None = None
    as_of_offset: int | None = None

    @property
    def is_as_of(self) -> bool:
        """Whether a state of the past is wanted."""
        return self.as_of_ms is not None or self.as_of_offset is not None

    @property
    def reader(self) -> str:
        """The table as a reader of its topic."""
        return f"table-{hashlib.sha256(str(self.out.absolute()).encode()).hexdigest()[:8]}"


class State(NamedTuple):
    """How far a table has come."""

    topic_id: str
    offsets: dict[int, int]


class Built(NamedTuple):
    """What a run did."""

    rows: int
    read: int  # offsets
    is_incremental: bool
    place: str


def build_table(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    request: TableRequest,
    *,
    progress: Progress | None = None,
) -> Built:
    """Bring the table up to date, or to a moment of the past."""
    shop = _shop(request)
    topic_id = str(api.archive(request.topic)["id"])
    starts, ends = _bounds(api, where, request)
    if not request.is_as_of:
        api.register(request.topic, request.reader)
    state = shop.state()
    is_incremental = state is not None and _continues(state, topic_id, ends)
    begin = starts
    if is_incremental and state is not None:
        begin = {at: max(start, state.offsets.get(at, 0)) for at, start in starts.items()}
        if begin == ends:
            return Built(shop.count(spark), 0, is_incremental=True, place=shop.place)
    changes = latest(_read(spark, api, where, request.topic, begin=begin, ends=ends))
    if is_incremental:
        changes = latest(shop.read(spark).unionByName(changes))
    read = sum(ends[at] - begin[at] for at in ends)
    stages = Stages(request.topic, read, progress) if progress else None
    with followed(spark, stages.tell if stages else None):
        shop.write(spark, changes.where("value is not null"), State(topic_id, ends))
    if not request.is_as_of:
        for partition, end in ends.items():
            api.advance(request.topic, partition, request.reader, end)
    return Built(shop.count(spark), read, is_incremental=is_incremental, place=shop.place)


class Stages:
    """A run's Spark stages as people know them, in offsets: a task is as good as any other.

    The first stage to run reads the topic; all others bring what was read together by key.
    """

    def __init__(self, topic: str, offsets: int, progress: Progress) -> None:
        self._topic = topic
        self._offsets = offsets
        self._progress = progress
        self._first: int | None = None
        progress(f"reading {topic}", 0, offsets)

    def tell(self, stages: Sequence[Any]) -> None:
        """What Spark says of the stages that are active now."""
        if not stages:
            return
        at = min(stage.stageId for stage in stages)
        self._first = at if self._first is None else self._first
        done = sum(stage.numCompletedTasks for stage in stages)
        total = sum(stage.numTasks for stage in stages)
        about = "reading" if at == self._first else "merging"
        self._progress(f"{about} {self._topic}", self._offsets * done // total, self._offsets)


def latest(changes: DataFrame) -> DataFrame:
    """The newest row of every key, tombstones too."""
    from pyspark.sql import functions as F  # noqa: N812

    newest = F.max_by(F.struct("value", "timestamp", "offset"), "offset").alias("newest")
    grouped = changes.where("key is not null").groupBy("partition", "key").agg(newest)
    return grouped.select("key", "newest.value", "partition", "newest.offset", "newest.timestamp")


def _continues(state: State, topic_id: str, ends: Mapping[int, int]) -> bool:
    """Whether a table can be brought up to these ends: the same topic, and no step back."""
    return state.topic_id == topic_id and all(
        at in ends and offset <= ends[at] for at, offset in state.offsets.items()
    )


def _bounds(
    api: BrokerApi, where: Where, request: TableRequest
) -> tuple[dict[int, int], dict[int, int]]:
    """Where each partition begins, and where to stop."""
    options = replace(source_options(api, where, request.topic), committed=True)
    count = api.partition_counts()
    if request.topic not in count:
        api.topic(request.topic)  # says that it is missing
    tps = [TopicPartition(request.topic, number) for number in range(count[request.topic])]
    with open_log(options) as log:
        bounds = log.bounds(tps)
        ends = {tp.partition: of.end for tp, of in bounds.items()}
        if request.as_of_ms is not None:
            for tp in tps:
                found = log.find_time(tp, request.as_of_ms + 1)
                ends[tp.partition] = ends[tp.partition] if found is None else found
        if request.as_of_offset is not None:
            ends = {at: min(end, request.as_of_offset) for at, end in ends.items()}
    starts = {tp.partition: min(of.start, ends[tp.partition]) for tp, of in bounds.items()}
    return starts, ends


def _read(
    spark: SparkSession,
    api: BrokerApi,
    where: Where,
    topic: str,
    *,
    begin: Mapping[int, int],
    ends: Mapping[int, int],
) -> DataFrame:
    def offsets(at: Mapping[int, int]) -> str:
        return json.dumps({topic: {str(partition): offset for partition, offset in at.items()}})

    path = source_options(api, where, topic).path
    options = {
        **COMMITTED,
        "subscribe": topic,
        "columns": "key,value,partition,offset,timestamp",
        "startingOffsets": offsets(begin),
        "endingOffsets": offsets(ends),
        "kafka.bootstrap.servers": where.servers or "",
    }
    reader = spark.read.format("cordwood").options(**options)
    return (reader.option("path", path) if path else reader).load()


# --- where tables lie -----------------------------------------------------------------------


def _shop(request: TableRequest) -> ParquetShop | DeltaShop:
    out = request.out.absolute()
    is_delta = (out / "_delta_log").is_dir()
    if request.form == "parquet" and is_delta:
        raise ConfigError(f"{out} is a Delta table; say --format delta, or use another directory")
    if request.form == "delta":
        if (out / CURRENT).exists():
            raise ConfigError(f"{out} is a Parquet table; use another directory for Delta")
        return DeltaShop(out)
    return ParquetShop(out)


class ParquetShop:
    """Versions side by side, and a link to the one in use."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.place = str(out / CURRENT)

    def state(self) -> State | None:
        """How far the table in use has come."""
        return _parse_state(self._out / CURRENT / STATE)

    def read(self, spark: SparkSession) -> DataFrame:
        """The table in use."""
        return spark.read.parquet((self._out / CURRENT).resolve().as_uri())

    def count(self, spark: SparkSession) -> int:
        """Its rows."""
        return int(self.read(spark).count())

    def write(self, spark: SparkSession, rows: DataFrame, state: State) -> None:
        """A new version, then the link."""
        del spark
        versions = self._out / VERSIONS
        versions.mkdir(parents=True, exist_ok=True)
        numbers = sorted(int(path.name) for path in versions.iterdir() if path.name.isdecimal())
        target = versions / f"{(numbers[-1] if numbers else 0) + 1:06d}"
        _write_parquet(rows, target)
        (target / STATE).write_text(_encode_state(state))
        link = self._out / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(VERSIONS) / target.name)
        _sync(target)
        link.replace(self._out / CURRENT)
        _sync(self._out)
        for number in numbers[: -(KEPT - 1) or None]:
            shutil.rmtree(versions / f"{number:06d}", ignore_errors=True)


class DeltaShop:
    """A Delta table, written by ``deltalake``; Spark itself has no Delta."""

    def __init__(self, out: Path) -> None:
        try:
            import deltalake
        except ImportError:
            raise ConfigError(
                'the format delta needs deltalake: run `pip install "cordwood[delta]"`'
            ) from None
        self._api: Any = deltalake
        self._out = out
        self.place = str(out)

    def state(self) -> State | None:
        """How far the table has come."""
        return _parse_state(self._out / STATE)

    def read(self, spark: SparkSession) -> DataFrame:
        """The files of its newest version."""
        files = self._api.DeltaTable(str(self._out)).file_uris()
        return spark.read.parquet(*[Path(file.removeprefix("file://")).as_uri() for file in files])

    def count(self, spark: SparkSession) -> int:
        """Its rows."""
        return int(self.read(spark).count())

    def write(self, spark: SparkSession, rows: DataFrame, state: State) -> None:
        """One Delta commit, then the note how far it goes; without the note it is done again."""
        del spark
        import pyarrow.dataset as ds

        staged = self._out / f".staged-{os.getpid()}"
        try:
            _write_parquet(rows, staged)
            with closing(ds.dataset(staged, format="parquet").scanner().to_reader()) as reader:
                self._api.write_deltalake(str(self._out), reader, mode="overwrite")
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        part = self._out / f"{STATE}.part"
        part.write_text(_encode_state(state))
        part.replace(self._out / STATE)


def _write_parquet(rows: DataFrame, target: Path) -> None:
    """All of it, or nothing and a sentence: most often the disk is full."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows.write.mode("overwrite").parquet(target.as_uri())
    except (Py4JError, PySparkException) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise UnavailableError(
            f"{target}: {plain_reason(error)}; mend that and run this again"
        ) from None


def _encode_state(state: State) -> str:
    return json.dumps({"topic_id": state.topic_id, "offsets": state.offsets}, sort_keys=True)


def _parse_state(path: Path) -> State | None:
    try:
        said = json.loads(path.read_text())
        return State(said["topic_id"], {int(at): offset for at, offset in said["offsets"].items()})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} does not parse; remove the table and build it again") from None


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
