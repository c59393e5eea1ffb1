"""``format("cordwood")``: topics as DataFrames, batch and stream.

The driver plans: which partitions, which offsets, how many tasks. Executors read their split and
keep nothing between splits. Options are ``options``, columns ``frames``, bytes ``logs``; here is
only what Spark's contract asks for, which is also why there are classes to inherit from.

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
from cordwood.pipeline.sink.options import parse_sink_options
from cordwood.pipeline.sink.sink import TopicStreamWriter, TopicWriter
from cordwood.pipeline.source.filters import Pushed
from cordwood.pipeline.source.identity import data_id_at
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.log_access import Log, open_log, reach_log
from cordwood.pipeline.source.offsets import (
    Loss,
    Range,
    begin_of_recreated,
    encode_offsets,
    is_too_few,
    is_volatile,
    parse_offsets,
    plan_limit,
    plan_partitions,
    plan_ranges,
    resolve,
    still_there,
)
from cordwood.pipeline.source.options import SourceOptions, parse_options, parse_wanted
from cordwood.pipeline.source.rows import read_rows
from cordwood.pipeline.source.schema import check_schema, ddl
from cordwood.pipeline.source.segment_files import StartHint
from cordwood.pipeline.source.splits import CORES_HERE, plan_splits
from cordwood.pipeline.source.topic_ids import ids_of, recreated, recreated_error, with_ids

_log: Final = logging.getLogger("cordwood.source")

Encoded = dict[str, dict[str, Any]]  # offsets as JSON, with the ids of their topics


class Split(InputPartition):
    """One task: a run of offsets, and a hint where it begins. Names no file."""

    def __init__(
        self,
        whole: Range,
        hint: StartHint | None,
        data_id: str | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Plain values only: it is pickled for every task."""
        super().__init__(tuple(whole))
        self.hint = hint
        self.data_id = data_id
        self.topic_id = topic_id

    @property
    def range(self) -> Range:
        """The offsets to read."""
        tp, start, end = self.value
        return Range(TopicPartition(*tp), start, end)


class CordwoodSource(DataSource):
    """What Spark finds under the name ``cordwood``."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "cordwood"

    def schema(self) -> str:
        """The Kafka source's columns, or those the option ``columns`` names."""
        return ddl(parse_wanted(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return TopicReader(parse_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """For ``spark.readStream``."""
        return TopicStreamReader(parse_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        options = parse_sink_options(self.options, streaming=False)
        return TopicWriter(options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        options = parse_sink_options(self.options, streaming=True)
        return TopicStreamWriter(options, schema, overwrite=overwrite)


class _QuietPush:
    """``pushFilters`` that Spark calls when pushdown is on, and overlooks when it is off.

    Spark refuses a reader that has the method while ``spark.sql.python.filterPushdown.enabled`` is
    off, which is its default; it tells by ``__func__``. Filters then simply stay with Spark.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, pushed: Pushed | None) -> None:
        """Without ``pushed``, nothing is narrowed."""
        self._pushed = pushed

    def __call__(self, filters: Iterable[Filter]) -> list[Filter]:
        """The filters Spark must still check."""
        pushed = self._pushed
        return [each for each in filters if pushed is None or not pushed.take(each)]


def is_pushdown_scoped(version: str) -> bool:
    """Whether this Spark keeps what was pushed down to the query it was pushed down for.

    Up to 4.3 the plan of a filtered query is kept with the DataFrame: other queries of the same
    DataFrame then read only what that filter left, in silence (fixed on Spark's master for 5.0).
    """
    return int(version.partition(".")[0]) >= 5


class TopicReader(DataSourceReader):
    """A batch query: from the starting to the ending position, as they are when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Refuse a schema no record has, before anything is read."""
        check_schema(schema.fields)
        self._options = options
        self._schema = schema
        self._pushed = Pushed(start=options.from_offset, end=options.before_offset)

    @property
    def pushFilters(self) -> _QuietPush:  # noqa: N802 - Spark's
        """Offsets, partitions, topics and times a query asks for narrow what is read.

        Where Spark would let that leak into other queries, only if ``filterPushdown`` says that
        this DataFrame serves one query.
        """
        asked = self._options.push_filters
        is_on = is_pushdown_scoped(pyspark.__version__) if asked is None else asked
        return _QuietPush(self._pushed if is_on else None)

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        warn_ignored(self._options)
        with open_log(self._options) as log:
            ranges = self._ranges(log)
            ids = log.topic_ids({each.tp.topic for each in ranges})
            return plan_tasks(log, self._options, ranges, ids)

    def _ranges(self, log: Log) -> list[Range]:
        """The offsets to read, after filters."""
        options, pushed = self._options, self._pushed
        tps = plan_partitions(options.subscription, log.topics())
        bounds = log.bounds(tps)
        losses: list[Loss] | None = None if options.fail_on_data_loss else []
        ends = [
            resolve(
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
        ranges = pushed.narrow(Range(tp, ends[0][tp], ends[1][tp]) for tp in bounds)
        if pushed.since_ms is None:
            return ranges
        since = {each.tp: log.find_time(each.tp, pushed.since_ms) for each in ranges}
        moved = [
            Range(tp, max(start, since[tp] or 0), end)
            for tp, start, end in ranges
            if since[tp] is not None
        ]
        return [each for each in moved if each.start < each.end]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The split's rows, as Arrow batches."""
        return read_split(self._options, self._schema, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; the checkpoint holds ``{"topic": {"0": next offset}}`` and topics' ids.

    Spark does not write down where a query began, only where each batch ends. A beginning that
    moves (``latest``) would be another one after a crash in the first batch, and that batch's
    records would be lost. So such a query begins with an empty batch: its end pins the beginning.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Refuse a schema no record has, before anything is read."""
        check_schema(schema.fields)
        self._options = options
        self._schema = schema
        self._clock = SystemClock()
        self._begun: Encoded | None = None  # a moving beginning, this run's
        self._is_pinned = True
        self._target: dict[TopicPartition, int] | None = None  # Trigger.AvailableNow's
        self._is_available_now = False
        self._latest: dict[TopicPartition, int] | None = None
        self._ids: dict[str, str] = {}  # of the topics in ``_latest``
        self._triggered_s: float | None = None
        self._opened: Log | None = None  # the driver's; executors open their own

    # --- what Spark asks the driver ----------------------------------------------------------

    def initialOffset(self) -> Encoded:  # noqa: N802 - Spark's
        """Where a new query begins."""
        options, log = self._options, self._driver_log()
        warn_ignored(options)
        bounds = log.bounds(plan_partitions(options.subscription, log.topics()))
        losses: list[Loss] | None = None if options.fail_on_data_loss else []
        begin = resolve(
            options.starting,
            bounds,
            log.find_time,
            starting=True,
            no_match_is_latest=options.no_match_is_latest,
            losses=losses,
        )
        report_losses(losses or (), fail=False)
        encoded = with_ids(encode_offsets(begin), log.topic_ids(topics_of(begin)))
        if is_volatile(options.starting, no_match_is_latest=options.no_match_is_latest):
            self._begun, self._is_pinned = encoded, False
        return encoded

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """``maxOffsetsPerTrigger``, else ``minOffsetsPerTrigger``; both are obeyed if both are."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """From now on, what is there now is all there is."""
        self._is_available_now = True
        self._target = self._read_latest()

    def latestOffset(  # noqa: N802 - Spark's
        self, start: Encoded, limit: ReadLimit
    ) -> Encoded:
        """Where the next batch ends."""
        self._latest = self._target if self._target is not None else self._read_latest()
        other = recreated(ids_of(start), self._ids)
        if other and self._options.fail_on_data_loss:
            raise recreated_error(other)
        if not self._is_pinned and start == self._begun:
            self._is_pinned = True
            return start
        if isinstance(limit, ReadAllAvailable):
            return with_ids(encode_offsets(self._latest), self._ids)
        known = {tp: at for tp, at in parse_offsets(start).items() if tp.topic not in other}
        begin = self._begin_of_new(known, self._latest)
        if not self._is_available_now and self._must_wait(begin, self._latest):
            return start
        most = self._options.max_offsets_per_trigger
        reach = self._latest if most is None else plan_limit(begin, self._latest, most)
        return with_ids(encode_offsets(reach), self._ids)

    def reportLatestOffset(self) -> Encoded | None:  # noqa: N802 - Spark's
        """The end of the log when it was last looked at, so that progress shows the lag."""
        return encode_offsets(self._latest) if self._latest else None

    def partitions(self, start: Encoded, end: Encoded) -> Sequence[InputPartition]:
        """The tasks of one batch."""
        begin, reach = parse_offsets(start), parse_offsets(end)
        if start == self._begun:  # the pinning batch is empty, also when it is run again
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
        begin = begin_of_recreated(begin, bounds, other, gone)
        ranges, losses = plan_ranges(begin, reach, bounds)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        return plan_tasks(log, self._options, ranges, now)

    def commit(self, end: Encoded) -> None:
        """The batch is done: move the cursor, if the query has one."""
        if self._options.commit_group is not None:
            with closing(KafkaLog(self._options)) as broker:
                broker.commit(self._options.commit_group, parse_offsets(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # --- what an executor does ---------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The split's rows, as Arrow batches."""
        return read_split(self._options, self._schema, partition)

    # --- within ------------------------------------------------------------------------------

    def with_topic_ids(self, encoded: Encoded) -> Encoded:
        """Offsets from elsewhere, with the ids their topics have now."""
        return with_ids(encoded, self._driver_log().topic_ids(encoded))

    def _driver_log(self) -> Log:
        """Kept open, as it remembers where in the files a stream stands."""
        if self._opened is None:
            self._opened = reach_log(self._options)
        return self._opened

    def _read_latest(self) -> dict[TopicPartition, int]:
        log, wanted = self._driver_log(), self._options.subscription
        topics = log.topics()
        if not self._options.fail_on_data_loss:
            wanted = still_there(wanted, topics)
        latest = {
            tp: found.end for tp, found in log.bounds(plan_partitions(wanted, topics)).items()
        }
        self._ids = log.topic_ids(topics_of(latest))
        return latest

    def _report_recreated(self, topics: Sequence[str]) -> None:
        """Fail, or say it and forget where in the files of the old topics the query stood."""
        if not topics:
            return
        if self._options.fail_on_data_loss:
            raise recreated_error(topics)
        _log.warning("source.topic_recreated topics=%s: read from the beginning", ",".join(topics))
        self.stop()

    def _begin_of_new(
        self, begin: dict[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The start with partitions that appeared since; they are read from their beginning."""
        new = sorted(latest.keys() - begin.keys())
        if new:
            found = self._driver_log().bounds(new)
            begin |= {tp: bounds.start for tp, bounds in found.items()}
        return begin

    def _must_wait(
        self, begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether too little waits for a batch, and not for too long yet."""
        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        now_s = self._clock.monotonic()
        delay_s = self._options.max_trigger_delay_ms / 1000
        is_due = self._triggered_s is None or now_s - self._triggered_s >= delay_s
        if not is_due and is_too_few(begin, latest, least):
            return True
        self._triggered_s = now_s
        return False


def plan_tasks(
    log: Log, options: SourceOptions, ranges: list[Range], ids: Mapping[str, str]
) -> list[InputPartition]:
    """Ranges → splits with hints, for topics with these ids."""
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
    """Runs on an executor."""
    if not isinstance(partition, Split):  # Spark's stand-in when there is nothing to read
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
    """Whether the name means another topic by now than when a task was planned."""
    planned = {} if topic_id is None else {topic: topic_id}
    return bool(planned and recreated(planned, log.topic_ids([topic])))


def topics_of(tps: Iterable[TopicPartition]) -> list[str]:
    """The topics of these partitions."""
    return sorted({tp.topic for tp in tps})


def report_losses(losses: Sequence[Loss], *, fail: bool) -> None:
    """Fail, or say once what is missing."""
    if not losses:
        return
    what = "; ".join(f"{loss.tp}: {loss.reason}" for loss in losses)
    if fail:
        raise DataLoss(
            f"records the query has not read are gone ({what}); set failOnDataLoss to false to go "
            "on without them, and commitGroup to make RECLAIM wait for the query"
        )
    _log.warning("source.data_lost %s", what)


def warn_ignored(options: SourceOptions) -> None:
    """Say once which options have no effect."""
    if options.ignored:
        _log.warning("source.options_ignored %s", ", ".join(options.ignored))
