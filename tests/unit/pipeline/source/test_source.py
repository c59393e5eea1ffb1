"""The batch and the stream reader of the Spark source, called as Spark does, without a JVM."""

import json
import pickle

import pytest

from cordwood.batch import column_decoder
from cordwood.errors import CorruptionError, DataLoss, InvalidOption, OffsetOutOfRange, UnknownTopic
from cordwood.model import Codec, Header, Record, TimestampType, TopicPartition
from support.datadir import START_MS, HandMade, held, make_data_directory, records
from support.schemas import full_schema

pytest.importorskip("pyspark")

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from cordwood.pipeline.source.rows import read_rows
from cordwood.pipeline.source.schema import COLUMNS
from cordwood.pipeline.source.source import CordwoodSource, _QuietPush

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
KEY_AND_OFFSET = StructType([StructField("key", BinaryType()), StructField("offset", LongType())])
OFFSET = StructType([StructField("offset", LongType())])


@pytest.fixture
def data(tmp_path):
    return make_data_directory(tmp_path / "data")


@pytest.fixture
def log(data):
    """Create offsets 0 to 60 of t-0 in three segments."""
    made = HandMade(data, T0)
    for base in (0, 20, 40):
        made.append(*(records(start, start + 5) for start in range(base, base + 20, 5)))
        if base < 40:
            made.cut()
    yield made
    made.close()


def source(data, **options):
    return CordwoodSource(CaseInsensitiveDict({"path": str(data), "subscribe": "t", **options}))


def collect(reader, splits=None):
    """Return all rows as dicts. The reader and the splits are pickled as for an executor."""
    there = pickle.loads(pickle.dumps(reader))
    rows = []
    for split in reader.partitions() if splits is None else splits:
        for batch in there.read(pickle.loads(pickle.dumps(split))):
            rows += batch.to_pylist()
    return rows


def offsets(rows):
    return [row["offset"] for row in rows]


# --- batch ----------------------------------------------------------------------------------


def test_rows_have_what_the_records_have(data):
    """Rows hold all fields of the records: nulls, empty values, headers, timestamps, all codecs."""
    from cordwood.pipeline.source.schema import ddl

    log = HandMade(data, T0)
    rich = [
        Record(0, START_MS, None, None),
        Record(1, START_MS + 1, b"", b"", (Header("a", None), Header("b", b""))),
        Record(5, START_MS + 2, b"k", b"v", (Header("c", b"d"),)),
    ]
    log.append(rich)
    for number, codec in enumerate(Codec):
        log.append(records(10 + number, 11 + number), codec=codec)
    log.append(records(20, 21), timestamp_type=TimestampType.APPEND)
    schema = full_schema()
    rows = collect(source(data).reader(schema))
    assert ddl(COLUMNS) == source(data, columns=",".join(COLUMNS)).schema()
    assert offsets(rows) == [0, 1, 5, 10, 11, 12, 13, 14, 20]
    assert rows[0] == {
        "key": None,
        "value": None,
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(START_MS / 1000, UTC),
        "timestampType": 0,
        "headers": None,
    }
    assert (rows[1]["key"], rows[1]["value"]) == (b"", b"")
    assert rows[1]["headers"] == [{"key": "a", "value": None}, {"key": "b", "value": b""}]
    assert rows[2]["headers"] == [{"key": "c", "value": b"d"}]
    assert [row["value"] for row in rows[3:8]] == [r.value for r in records(10, 15)]
    assert [row["timestampType"] for row in rows] == [0] * 8 + [1]


def test_only_declared_columns_are_decoded(data, log, monkeypatch):
    """Only the columns of the declared schema are decoded."""
    wanted = []
    decode = column_decoder.decode_columns

    def spy(chunk, **options):
        wanted.append(options["wanted"])
        return decode(chunk, **options)

    monkeypatch.setattr(column_decoder, "decode_columns", spy)
    rows = collect(source(data).reader(KEY_AND_OFFSET))
    assert rows[:2] == [{"key": b"k0", "offset": 0}, {"key": b"k1", "offset": 1}]
    assert len(rows) == 60
    assert set(wanted) == {frozenset({"key"})}


def test_a_schema_no_record_has_is_refused(data, log):
    """A declared schema with a wrong name or type is refused by column."""
    with pytest.raises(InvalidOption, match="no column ky; did you mean key"):
        source(data).reader(StructType([StructField("ky", BinaryType())]))
    with pytest.raises(
        InvalidOption, match="column offset is bigint, the declared schema says str"
    ):
        source(data).reader(StructType([StructField("offset", StringType())]))


def pushed(data, *conditions, **options):
    reader = source(data, **{"filterPushdown": "true"} | options).reader(OFFSET)
    return reader, list(reader.pushFilters(list(conditions)))


def test_offset_filters_are_carried_out_by_the_reader(data, log):
    """Offset filters are applied by the reader and not repeated by Spark."""
    reader, left = pushed(data, GreaterThanOrEqual(("offset",), 17), LessThan(("offset",), 23))
    assert left == []
    assert offsets(collect(reader)) == list(range(17, 23))


def test_a_time_filter_moves_the_start_and_stays_with_spark(data, log):
    """A timestamp filter moves the start offset, and Spark still checks each row."""
    since = GreaterThan(("timestamp",), datetime.fromtimestamp(START_MS / 1000 + 41, UTC))
    reader, left = pushed(data, since)
    assert left == [since]
    assert offsets(collect(reader)) == list(range(41, 60))
    late = GreaterThan(("timestamp",), datetime.fromtimestamp(START_MS / 1000 + 99, UTC))
    assert collect(pushed(data, late)[0]) == []


def test_partition_and_topic_filters_leave_the_others_unread(data, log):
    """Partitions and topics that a filter excludes are not read. No splits give no rows."""
    other = HandMade(data, T1)
    other.append(records(0, 3))
    assert offsets(collect(pushed(data, EqualTo(("partition",), 1))[0])) == [0, 1, 2]
    reader, _ = pushed(data, EqualTo(("topic",), "u"))
    assert reader.partitions() == []
    assert collect(reader, [InputPartition(None)]) == []


def test_filters_narrow_nothing_where_spark_would_let_that_leak(data, log, monkeypatch):
    """Up to Spark 4.3 filters are left to Spark.

    There, a pushed filter would also affect other queries of the same DataFrame.
    """
    condition = EqualTo(("offset",), 17)
    for version, narrowed in [("4.2.0", False), ("4.3.0", False), ("5.0.0.dev1", True)]:
        monkeypatch.setattr("cordwood.pipeline.source.source.pyspark.__version__", version)
        reader, left = pushed(data, condition, filterPushdown="auto")
        assert left == ([] if narrowed else [condition])
        assert len(collect(reader)) == (1 if narrowed else 60)


def test_pushdown_may_be_off(data, log):
    """``pushFilters`` looks like the base class's method, so Spark accepts it with pushdown off."""
    reader = source(data).reader(OFFSET)
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters
    assert isinstance(reader.pushFilters, _QuietPush)


def test_starting_and_ending_options_bound_a_batch(data, log):
    """Starting and ending options bound a batch read, by offset and by timestamp."""
    by_offset = source(data, startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":9}}')
    assert offsets(collect(by_offset.reader(OFFSET))) == [7, 8]
    at_end = source(data, startingOffsets='{"t":{"0":60}}')
    assert at_end.reader(OFFSET).partitions() == [], "the end is where the next record will be"
    times = {"startingTimestamp": str(START_MS + 5000), "endingTimestamp": str(START_MS + 8000)}
    assert offsets(collect(source(data, **times).reader(OFFSET))) == [5, 6, 7]


def test_bad_requests_are_refused_while_planning(data, log):
    """Unknown topics and invalid offsets are refused on the driver, before any task starts."""
    with pytest.raises(UnknownTopic, match="no topic tt; did you mean t"):
        source(data, subscribe="tt").reader(OFFSET).partitions()
    with pytest.raises(OffsetOutOfRange, match="0 to 60"):
        source(data, startingOffsets='{"t":{"0":99}}').reader(OFFSET).partitions()


@pytest.mark.parametrize("count", [2, 7, 60, 200])
def test_min_partitions_makes_more_tasks(data, log, count):
    """``minPartitions`` gives more splits with the same rows."""
    reader = source(data, minPartitions=str(count)).reader(OFFSET)
    assert len(reader.partitions()) >= min(count, 60)
    assert offsets(collect(reader)) == list(range(60))


def test_splits_are_small_and_name_no_file(data, log):
    """A split is small and names no file, because files may be swapped before the task runs."""
    splits = source(data, minPartitions="20").reader(OFFSET).partitions()
    for split in splits:
        assert len(pickle.dumps(split)) < 300
        assert b".log" not in pickle.dumps(split)


def test_a_damaged_batch_is_an_error_that_says_where(data, log):
    """Checksums are verified on every read, and the error names the offsets."""
    path = log.path(20)
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=r"t-0, offsets \d+ to \d+: .*segment verify"):
        collect(source(data).reader(OFFSET))


# --- stream ---------------------------------------------------------------------------------


def streaming(data, schema=OFFSET, **options):
    return source(data, **options).streamReader(schema)


def take(reader, start, end):
    return offsets(collect(reader, reader.partitions(start, end)))


def at(offset):
    return {"t": {"0": offset}}


def test_a_stream_from_earliest_reads_everything_once(data, log):
    """A stream from earliest reads every record once, in batches within the limit."""
    reader = streaming(data, startingOffsets="earliest", maxOffsetsPerTrigger="25")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(25)
    position, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(position, limit)) != position:
        seen.append(take(reader, position, end))
        position = end
    assert [len(batch) for batch in seen] == [25, 25, 10]
    assert [offset for batch in seen for offset in batch] == list(range(60))
    assert reader.reportLatestOffset() == at(60)


def test_offsets_survive_json(data, log):
    """Offsets can be stored as JSON, as in Spark's checkpoint."""
    reader = streaming(data, startingOffsets="earliest")
    begin = json.loads(json.dumps(reader.initialOffset()))
    assert reader.latestOffset(begin, ReadAllAvailable()) == at(60)


def test_a_stream_from_latest_pins_its_beginning(data, log):
    """A stream from latest has an empty first batch, which records its start in the checkpoint."""
    log.publish()
    reader = streaming(data)
    begin = reader.initialOffset()
    log.append(records(60, 65))
    log.publish()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin == at(60)
    assert reader.partitions(begin, begin) == []
    assert reader.latestOffset(begin, ReadAllAvailable()) == at(65)


def test_a_crash_in_the_first_batch_loses_nothing(data, log):
    """After a crash in the first batch, the stream continues from the offsets in the checkpoint."""
    log.publish()
    began = streaming(data).initialOffset()
    log.append(records(60, 65))
    log.publish()
    again = streaming(data)
    later = again.initialOffset()
    assert later == at(65)
    assert again.partitions(later, began) == []
    assert take(again, began, again.latestOffset(began, ReadAllAvailable())) == list(range(60, 65))


def test_available_now_stops_at_what_was_there(data, log):
    """``availableNow`` stops at the offsets that were the latest when the run started."""
    log.publish()
    reader = streaming(data, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    reader.prepareForTriggerAvailableNow()
    log.append(records(60, 65))
    log.publish()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(at(0), limit) == at(40)
    assert reader.latestOffset(at(40), limit) == at(60)
    assert reader.latestOffset(at(60), limit) == at(60)


def test_a_small_batch_waits_until_enough_or_too_long(data, log, monkeypatch):
    """A batch waits for ``minOffsetsPerTrigger`` records, at most for ``maxTriggerDelay``."""
    reader = streaming(data, startingOffsets="earliest", minOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    clock = iter([0.0, 1.0, 2.0, 3.0, 903.0])
    monkeypatch.setattr(reader._clock, "monotonic", lambda: next(clock))
    assert reader.latestOffset(at(50), limit) == at(60)  # the first batch does not wait
    assert reader.latestOffset(at(50), limit) == at(50)
    assert reader.latestOffset(at(30), limit) == at(60)
    assert reader.latestOffset(at(50), limit) == at(50)
    assert reader.latestOffset(at(50), limit) == at(60)  # 15 minutes have passed


def test_a_partition_that_appears_is_read_from_its_start(data, log):
    """A new partition is read from its start, within the limit."""
    other = HandMade(data, T1)
    other.append(records(0, 10))
    reader = streaming(data, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    end = reader.latestOffset(at(60), reader.getDefaultReadLimit())
    assert end == {"t": {"0": 60, "1": 5}}
    assert take(reader, at(60), end) == list(range(5))


def test_what_was_reclaimed_before_it_was_read_fails_the_query(data, log):
    """Reclaimed offsets fail the query, unless ``failOnDataLoss`` is false."""
    log.reclaim(0, purge=True)
    with pytest.raises(DataLoss, match=r"t-0: offsets 5 to 20 were reclaimed"):
        streaming(data).partitions(at(5), at(30))
    loose = streaming(data, failOnDataLoss="false")
    assert take(loose, at(5), at(30)) == list(range(20, 30))


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(5, 30, range(20, 30)), (5, 99, range(20, 60)), (3, 9, ()), (70, 99, ())],
)
def test_a_batch_whose_offsets_are_gone_reads_the_rest_if_data_loss_is_allowed(
    data, log, caplog, start, end, left
):
    """With ``failOnDataLoss`` off, a batch reads what is left and logs what is missing."""
    log.reclaim(0, purge=True)
    at = {
        f"{side}Offsets": f'{{"t":{{"0":{n}}}}}'
        for side, n in (("starting", start), ("ending", end))
    }
    with pytest.raises(OffsetOutOfRange, match=r"20 to 60 .*set failOnDataLoss to false"):
        source(data, **at).reader(OFFSET).partitions()
    loose = source(data, failOnDataLoss="false", **at).reader(OFFSET)
    assert offsets(collect(loose)) == list(left)
    assert "source.data_lost t-0: " in caplog.text


def test_a_stream_from_before_the_log_starts_at_its_start_if_data_loss_is_allowed(
    data, log, caplog
):
    """With ``failOnDataLoss`` off, a new stream whose start is gone begins at the log start."""
    log.reclaim(0, purge=True)
    options = {"startingOffsets": '{"t":{"0":5}}'}
    with pytest.raises(OffsetOutOfRange, match="20 to 60"):
        streaming(data, **options).initialOffset()
    assert streaming(data, failOnDataLoss="false", **options).initialOffset() == at(20)
    assert "source.data_lost t-0: startingOffsets is 5" in caplog.text


def test_a_reclaim_after_planning_does_not_hurt(data, log):
    """Segments reclaimed after planning can still be read."""
    reader = streaming(data)
    splits = reader.partitions(at(5), at(30))
    log.reclaim(0)
    assert offsets(collect(reader, splits)) == list(range(5, 30))


def test_a_running_broker_bounds_the_stream(data, log):
    """A stream does not read past the published high watermark of a running broker."""
    log.publish()
    log.append(records(60, 65))
    with held(data):
        reader = streaming(data, startingOffsets="earliest")
        assert reader.latestOffset(at(0), ReadAllAvailable()) == at(60)


def test_chunks_outside_the_split_are_cut_off(data, log):
    """A batch that overlaps two splits gives each split only its own rows."""
    reader = source(data, maxRecordsPerPartition="3").reader(OFFSET)
    parts = [offsets(collect(reader, [split])) for split in reader.partitions()]
    assert max(map(len, parts)) == 3
    assert [offset for part in parts for offset in part] == list(range(60))


def test_reading_no_chunk_gives_no_row():
    """No chunks give no rows."""
    assert list(read_rows([], None, OFFSET)) == []


def test_reading_keeps_the_kernels_out_of_the_collectors_way(data, log):
    """Reading freezes the objects of numba, so that the garbage collector skips them.

    Spark's worker collects garbage after every task, and scanning numba takes 70 ms.
    """
    import gc

    collect(source(data).reader(OFFSET))
    assert gc.get_freeze_count() > 10_000


def test_offsets_given_as_options_narrow_the_plan(data, log):
    """``fromOffset`` and ``beforeOffset`` narrow every partition, and may exceed the log."""
    reader = source(data, fromOffset="13", beforeOffset="27").reader(OFFSET)
    assert [tuple(split.value)[1:] for split in reader.partitions()] == [(13, 27)]
    assert offsets(collect(reader)) == list(range(13, 27))
    assert source(data, fromOffset="60", beforeOffset="900").reader(OFFSET).partitions() == []
    with pytest.raises(InvalidOption, match="fromOffset"):
        source(data, fromOffset="13").streamReader(OFFSET)


def test_spark_asks_a_python_source_neither_for_a_description_nor_for_metrics():
    """Spark's Python data source API has no method for a description or for metrics.

    docs/spark.md says so. When Spark adds one, the source should implement it.
    """
    kinds = (DataSource, DataSourceReader, DataSourceStreamReader)
    offered = {name.lower() for kind in kinds for name in dir(kind) if not name.startswith("_")}
    assert not {name for name in offered if "metric" in name or "descri" in name}
