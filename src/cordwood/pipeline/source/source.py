"""``format("cordwood")``: topics as DataFrames, batch and stream.

The driver plans which partitions and offsets to read, in how many tasks. Executors read their
splits and keep no state between them. This module only implements Spark's data source classes;
``options`` parses options, ``schema`` defines columns and ``log_access`` reads the log.

Never writes, and never commits a cursor unless ``commitGroup`` names one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cordwood.clock import SystemClock
from cordwood.errors import DataLoss
from cordwood.model import TopicPartition
from cordwood.pipeline.sink import parse_sink_options
from cordwood.pipeline.sink.sink import TopicStreamWriter, TopicWriter
from cordwood.pipeline.source import offsets
from cordwood.pipeline.source.filters import Pushed
from cordwood.pipeline.source.identity import data_id_at
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.log_access import Log, open_log, reach_log
from cordwood.pipeline.source.options import SourceOptions, parse_options, parse_wanted
from cordwood.pipeline.source.rows import read_rows
from cordwood.pipeline.source.schema import check_schema, ddl
from cordwood.pipeline.source.segment_files import StartHint
from cordwood.pipeline.source.splits import CORES_HERE, plan_splits
from cordwood.pipeline.source.topic_ids import ids_of, recreated, recreated_error, with_ids

_log: Final = logging.getLogger("cordwood.source")

Encoded = dict[str, dict[str, Any]]  # offsets as JSON, with the ids of their topics


class Split(InputPartition):
    """One task: a range of offsets and a hint where it begins; never a file name."""

    def __init__(
        self,
        whole: offsets.Range,
        hint: StartHint | None,
        data_id: str | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Takes plain values only, as a split is pickled for its task."""
        super().__init__(tuple(whole))
        self.hint = hint
        self.data_id = data_id
        self.topic_id = topic_id

    @property
    def range(self) -> offsets.Range:
        """The offsets to read."""
        tp, start, end = self.value
        return offsets.Range(TopicPartition(*tp), start, end)


class CordwoodSource(DataSource):
    """The data source that Spark registers as ``cordwood``."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to ``format``."""
        return "cordwood"

    def schema(self) -> str:
        """The Kafka source's columns, or those the option ``columns`` names."""
        return ddl(parse_wanted(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader for ``spark.read``."""
        return TopicReader(parse_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Reader for ``spark.readStream``."""
        return TopicStreamReader(parse_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writer for ``df.write``."""
        options = parse_sink_options(self.options, streaming=False)
        return TopicWriter(options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Writer for ``df.writeStream``."""
        options = parse_sink_options(self.options, streaming=True)
        return TopicStreamWriter(options, schema, overwrite=overwrite)


class _QuietPush:
    """A ``pushFilters`` that Spark calls if pushdown is enabled and ignores if it is not.

    While ``spark.sql.python.filterPushdown.enabled`` is off (the default), Spark rejects a reader
    that overrides ``pushFilters``. It detects that by ``__func__``, which is the base class's here.
    Spark then evaluates all filters itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, pushed: Pushed | None) -> None:
        """Without ``pushed``, all filters are left to Spark."""
        self._pushed = pushed

    def __call__(self, filters: Iterable[Filter]) -> list[Filter]:
        """The filters Spark must still check."""
        pushed = self._pushed
        return [each for each in filters if pushed is None or not pushed.take(each)]


def is_pushdown_scoped(version: str) -> bool:
    """Whether this Spark version limits pushed-down filters to the query they belong to.

    Up to 4.3 Spark keeps the plan of a filtered query with the DataFrame. Other queries of the same
    DataFrame then silently read only the filtered records (fixed on Spark's master for 5.0).
    """
    return int(version.partition(".")[0]) >= 5


class TopicReader(DataSourceReader):
    """A batch query; its starting and ending positions are resolved when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Reject an invalid schema before anything is read."""
        check_schema(schema.fields)
        self._options = options
        self._schema = schema
        self._pushed = Pushed(start=options.from_offset, end=options.before_offset)

    @property
    def pushFilters(self) -> _QuietPush:  # noqa: N802 - Spark's
        """Let filters on offset, partition, topic and timestamp narrow what is read.

        In Spark versions where filters leak into other queries, this happens only if the option
        ``filterPushdown`` states that the DataFrame serves one query.
        """
        asked = self._options.push_filters
        is_on = is_pushdown_scoped(pyspark.__version__) if asked is None else asked
        return _QuietPush(self._pushed if is_on else None)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks of the query."""
        warn_ignored(self._options)
        with open_log(self._options) as log:
            ranges = self._ranges(log)
            ids = log.topic_ids({each.tp.topic for each in ranges})
            return plan_tasks(log, self._options, ranges, ids)

    def _ranges(self, log: Log) -> list[offsets.Range]:
        """The offsets to read, after filters."""
        options, pushed = self._options, self._pushed
        tps = offsets.plan_partitions(options.subscription, log.topics())
        bounds = log.bounds(tps)
        losses: list[offsets.Loss] | None = None if options.fail_on_data_loss else []
        ends = [
            offsets.resolve(
                position,
                bounds,
                log.find_time,
                starting=position is options.starting,
                no_match_is_latest=options.no_match_is_latest,
                losses=losses,
            )
            for position in (options.starting, options.ending)
        ]
        report_losses(losses or (), fail=False)
        ranges = pushed.narrow(offsets.Range(tp, ends[0][tp], ends[1][tp]) for tp in bounds)
        if pushed.since_ms is None:
            return ranges
        since = {each.tp: log.find_time(each.tp, pushed.since_ms) for each in ranges}
        moved = [
            offsets.Range(tp, max(start, since[tp] or 0), end)
            for tp, start, end in ranges
            if since[tp] is not None
        ]
        return [each for each in moved if each.start < each.end]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of the split as Arrow record batches."""
        return read_split(self._options, self._schema, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; the checkpoint holds ``{"topic": {"0": next offset}}`` and topic ids.

    Spark stores the end of each batch in the checkpoint, but not where the query began. A starting
    position that moves (``latest``) would resolve to a later offset after a crash in the first
    batch, and the records of that batch would be lost. So such a query begins with an empty batch,
    whose end pins the starting offsets.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Reject an invalid schema before anything is read."""
        check_schema(schema.fields)
        self._options = options
        self._schema = schema
        self._clock = SystemClock()
        self._begun: Encoded | None = None  # this run's start, if its starting position moves
        self._is_pinned = True
        self._target: dict[TopicPartition, int] | None = None  # Trigger.AvailableNow's
        self._is_available_now = False
        self._latest: dict[TopicPartition, int] | None = None
        self._ids: dict[str, str] = {}  # of the topics in ``_latest``
        self._triggered_s: float | None = None
        self._opened: Log | None = None  # the driver's; executors open their own

    # --- called on the driver ----------------------------------------------------------------

    def initialOffset(self) -> Encoded:  # noqa: N802 - Spark's
        """The starting offsets of a new query."""
        options, log = self._options, self._driver_log()
        warn_ignored(options)
        bounds = log.bounds(offsets.plan_partitions(options.subscription, log.topics()))
        losses: list[offsets.Loss] | None = None if options.fail_on_data_loss else []
        begin = offsets.resolve(
            options.starting,
            bounds,
            log.find_time,
            starting=True,
            no_match_is_latest=options.no_match_is_latest,
            losses=losses,
        )
        report_losses(losses or (), fail=False)
        encoded = with_ids(offsets.encode_offsets(begin), log.topic_ids(topics_of(begin)))
        if offsets.is_volatile(options.starting, no_match_is_latest=options.no_match_is_latest):
            self._begun, self._is_pinned = encoded, False
        return encoded

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """``maxOffsetsPerTrigger``, else ``minOffsetsPerTrigger``; both apply if both are set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end of the query to the current end of the log."""
        self._is_available_now = True
        self._target = self._read_latest()

    def latestOffset(  # noqa: N802 - Spark's
        self, start: Encoded, limit: ReadLimit
    ) -> Encoded:
        """The end offsets of the next batch."""
        self._latest = self._target if self._target is not None else self._read_latest()
        other = recreated(ids_of(start), self._ids)
        if other and self._options.fail_on_data_loss:
            raise recreated_error(other)
        if not self._is_pinned and start == self._begun:
            self._is_pinned = True
            return start
        if isinstance(limit, ReadAllAvailable):
            return with_ids(offsets.encode_offsets(self._latest), self._ids)
        known = {tp: at for tp, at in offsets.parse_offsets(start).items() if tp.topic not in other}
        begin = self._begin_of_new(known, self._latest)
        if not self._is_available_now and self._must_wait(begin, self._latest):
            return start
        most = self._options.max_offsets_per_trigger
        reach = self._latest if most is None else offsets.plan_limit(begin, self._latest, most)
        return with_ids(offsets.encode_offsets(reach), self._ids)

    def reportLatestOffset(self) -> Encoded | None:  # noqa: N802 - Spark's
        """The end of the log as last read, so that Spark's progress reports show the lag."""
        return offsets.encode_offsets(self._latest) if self._latest else None

    def partitions(self, start: Encoded, end: Encoded) -> Sequence[InputPartition]:
        """Plan the tasks of one batch."""
        begin, reach = offsets.parse_offsets(start), offsets.parse_offsets(end)
        if start == self._begun:  # the pinning batch stays empty when it is run again
            begin = {tp: min(offset, reach.get(tp, offset)) for tp, offset in begin.items()}
        other = recreated(ids_of(start), ids_of(end))
        if begin == reach and not other:
            return []
        now = self._driver_log().topic_ids(topics_of(reach))
        gone = recreated(ids_of(end), now)
        self._report_recreated(sorted({*other, *gone}))
        log = self._driver_log()
        reach = {tp: at for tp, at in reach.items() if tp.topic not in gone}
        bounds = log.bounds(sorted(begin.keys() | reach.keys()))
        begin = offsets.begin_of_recreated(begin, bounds, other, gone)
        ranges, losses = offsets.plan_ranges(begin, reach, bounds)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        return plan_tasks(log, self._options, ranges, now)

    def commit(self, end: Encoded) -> None:
        """Commit the cursor of ``commitGroup`` after a batch, if the query has one."""
        if self._options.commit_group is not None:
            with closing(KafkaLog(self._options)) as broker:
                broker.commit(self._options.commit_group, offsets.parse_offsets(end))

    def stop(self) -> None:
        """Close the driver's log when the query ends."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # --- called on executors -----------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of the split as Arrow record batches."""
        return read_split(self._options, self._schema, partition)

    # --- internal ----------------------------------------------------------------------------

    def with_topic_ids(self, encoded: Encoded) -> Encoded:
        """Add the current topic ids to offsets that were not read from this stream."""
        return with_ids(encoded, self._driver_log().topic_ids(encoded))

    def _driver_log(self) -> Log:
        """The driver's log; it stays open because it caches file positions of the stream."""
        if self._opened is None:
            self._opened = reach_log(self._options)
        return self._opened

    def _read_latest(self) -> dict[TopicPartition, int]:
        log, wanted = self._driver_log(), self._options.subscription
        topics = log.topics()
        if not self._options.fail_on_data_loss:
            wanted = offsets.still_there(wanted, topics)
        latest = {
            tp: bounds.end
            for tp, bounds in log.bounds(offsets.plan_partitions(wanted, topics)).items()
        }
        self._ids = log.topic_ids(topics_of(latest))
        return latest

    def _report_recreated(self, topics: Sequence[str]) -> None:
        """Raise, or log a warning and drop the cached file positions of the old topics."""
        if not topics:
            return
        if self._options.fail_on_data_loss:
            raise recreated_error(topics)
        _log.warning("source.topic_recreated topics=%s: read from the beginning", ",".join(topics))
        self.stop()

    def _begin_of_new(
        self, begin: dict[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Add new partitions to the start offsets; they are read from their log start."""
        new = sorted(latest.keys() - begin.keys())
        if new:
            added = self._driver_log().bounds(new)
            begin |= {tp: bounds.start for tp, bounds in added.items()}
        return begin

    def _must_wait(
        self, begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether fewer records than the minimum wait and the maximum delay is not over yet."""
        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        now_s = self._clock.monotonic()
        delay_s = self._options.max_trigger_delay_ms / 1000
        is_due = self._triggered_s is None or now_s - self._triggered_s >= delay_s
        if not is_due and offsets.is_too_few(begin, latest, least):
            return True
        self._triggered_s = now_s
        return False


def plan_tasks(
    log: Log, options: SourceOptions, ranges: list[offsets.Range], ids: Mapping[str, str]
) -> list[InputPartition]:
    """Turn ranges into splits, with hints and the ids of their topics."""
    splits = plan_splits(
        ranges,
        log.pieces,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        cores=options.parallelism or CORES_HERE,
    )
    data_id = data_id_at(options.path)
    return [
        Split(each, log.hint(each.tp, each.start), data_id, ids.get(each.tp.topic))
        for each in splits
    ]


def read_split(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[Any]:
    """Read the rows of one split; runs on an executor."""
    if not isinstance(partition, Split):  # Spark's placeholder when there is nothing to read
        return
    whole = partition.range
    with open_log(replace(options, data_id=partition.data_id)) as log:
        if is_recreated(log, whole.tp.topic, partition.topic_id):
            if options.fail_on_data_loss:
                raise recreated_error([whole.tp.topic])
            _log.warning("source.data_lost %s: its topic was recreated", whole.tp)
            return
        yield from read_rows(log.chunks(whole, partition.hint), whole, schema)


def is_recreated(log: Log, topic: str, topic_id: str | None) -> bool:
    """Whether the topic was deleted and created again since the task was planned."""
    planned = {} if topic_id is None else {topic: topic_id}
    return bool(planned and recreated(planned, log.topic_ids([topic])))


def topics_of(tps: Iterable[TopicPartition]) -> list[str]:
    """The topic names of these partitions, sorted."""
    return sorted({tp.topic for tp in tps})


def report_losses(losses: Sequence[offsets.Loss], *, fail: bool) -> None:
    """Raise ``DataLoss``, or log one warning that lists the losses."""
    if not losses:
        return
    what = "; ".join(f"{loss.tp}: {loss.reason}" for loss in losses)
    if fail:
        raise DataLoss(
            f"records that the query has not read were deleted ({what}); set failOnDataLoss to "
            "false to continue without them, and commitGroup to make RECLAIM wait for the query"
        )
    _log.warning("source.data_lost %s", what)


def warn_ignored(options: SourceOptions) -> None:
    """Log a warning that lists the options without effect."""
    if options.ignored:
        _log.warning("source.options_ignored %s", ", ".join(options.ignored))
