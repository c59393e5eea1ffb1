"""``spark.read.format("cordwood")`` on a data directory, in a real session."""

from datetime import UTC, datetime, timedelta

import pytest

from cordwood.model import Codec, Record, TopicPartition
from cordwood.spark import topic
from support.datadir import HandMade, records

pytestmark = pytest.mark.spark

KAFKA_SOURCE_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)
HEADERS_FIELD = ",headers:array<struct<key:string,value:binary>>>"


@pytest.fixture
def log(data):
    """A log with every third record compacted away, in batches of alternating codecs."""
    made = HandMade(data, TopicPartition("t", 0))
    for number, start in enumerate(range(0, 300, 30)):
        kept = [record for record in records(start, start + 30, headers=True) if record.offset % 3]
        made.append(kept, codec=list(Codec)[number % 5])
        if number % 4 == 3:
            made.cut()
    yield made
    made.close()


def expected():
    return [record for record in records(0, 300, headers=True) if record.offset % 3]


def test_schema_is_that_of_the_kafka_source(spark, data, log):
    """Column names and types match the Kafka source; headers are included only on request."""
    assert topic(spark, "t", path=str(data)).schema.simpleString() == KAFKA_SOURCE_SCHEMA
    with_headers = topic(spark, "t", path=str(data), includeHeaders=True).schema
    assert with_headers.simpleString() == KAFKA_SOURCE_SCHEMA[:-1] + HEADERS_FIELD
    assert all(field.nullable for field in with_headers.fields)


def test_every_record_arrives_once_with_all_its_fields(spark, data, log):
    """All fields of every record survive the way through Arrow and the JVM."""
    rows = topic(spark, "t", path=str(data), includeHeaders=True, minPartitions=3).collect()
    found = sorted(
        (
            row.offset,
            row.key,
            row.value,
            row.timestamp.timestamp() * 1000,
            [(header.key, header.value) for header in row.headers],
        )
        for row in rows
    )
    assert found == [
        (r.offset, r.key, r.value, r.timestamp_ms, [tuple(h) for h in r.headers])
        for r in expected()
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {("t", 0, 0)}


@pytest.mark.parametrize(
    ("enabled", "asked"), [("true", "true"), ("true", "auto"), ("false", "true")]
)
def test_filters_give_the_same_rows_pushed_down_or_not(spark, data, log, enabled, asked):
    """Filters return the same rows with Spark's filter pushdown on and off (its default)."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    columns = ["offset", "timestamp", "partition"]
    try:
        rows = (
            topic(spark, "t", path=str(data), columns=columns, filterPushdown=asked)
            .filter("offset > 100 and offset <= 200 and partition = 0")
            .filter("timestamp >= timestamp'2023-11-14 22:15:50' and offset != 151")
            .collect()
        )
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert sorted(row.offset for row in rows) == [
        r.offset for r in expected() if 150 <= r.offset <= 200 and r.offset != 151
    ]


def test_a_filter_of_one_query_does_not_leak_into_another(spark, data, log):
    """Spark 4.3 keeps a pushed-down plan with the DataFrame; later queries must ignore it."""
    frame = topic(spark, "t", path=str(data), columns=["offset"])
    assert frame.filter("offset = 7").count() == 1
    assert frame.count() == 200
    both = frame.filter("offset = 7").union(frame.filter("offset = 11"))
    assert sorted(row.offset for row in both.collect()) == [7, 11]


def test_the_columns_to_read_can_be_given_in_advance(spark, data, log):
    """Offset, time and partition arguments return the same rows as filters."""
    at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # offset n is n seconds later
    frame = topic(
        spark,
        "t",
        path=str(data),
        columns=["offset"],
        partitions=[0],
        start=100,
        end=200,
        since=at + timedelta(seconds=150),
        until=at + timedelta(seconds=180),
    )
    assert frame.columns == ["offset"]
    assert sorted(row.offset for row in frame.collect()) == [
        r.offset for r in expected() if 150 <= r.offset < 180
    ]
    late = topic(spark, "t", path=str(data), since=at + timedelta(days=1))
    assert late.count() == 0


def test_null_and_empty_are_different(spark, data):
    """A tombstone is null; empty bytes are a value."""
    log = HandMade(data, TopicPartition("n", 0))
    log.append([Record(0, 5, None, None), Record(1, 6, b"", b"")])
    rows = topic(spark, "n", path=str(data), columns=["key", "value", "offset"]).collect()
    assert [tuple(row) for row in rows] == [(None, None, 0), (b"", b"", 1)]


def test_a_topic_without_records_is_an_empty_frame(spark, data):
    """Reading an empty topic returns an empty DataFrame, not an error."""
    HandMade(data, TopicPartition("empty", 0))
    assert topic(spark, "empty", path=str(data)).count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "tt"}, "there is no topic tt; did you mean t?"),
        ({"path": "/"}, "/ is not a cordwood data directory"),
        ({"startingOffsets": '{"t":{"0":999}}'}, "but the log holds offsets 0 to 300"),
        ({"startingOfsets": "earliest"}, "unknown option startingOfsets; did you mean"),
    ],
)
def test_bad_input_is_a_clear_error_in_the_driver(spark, data, log, options, message):
    """Invalid options raise an AnalysisException that says what to change."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format("cordwood").options(
        **{"path": str(data), "subscribe": "t"} | options
    )
    with pytest.raises(AnalysisException) as refused:
        reader.load().collect()
    assert message.lower() in str(refused.value).lower()


def test_a_newer_format_on_disk_is_a_clear_error(spark, data, log):
    """A data directory with an unknown format version raises an error."""
    from pyspark.errors import AnalysisException

    (data / "format-version").write_text("7\n")
    with pytest.raises(AnalysisException, match="has format '7', but this cordwood reads 1"):
        topic(spark, "t", path=str(data)).collect()


def test_sql_reads_a_topic(spark, data, log):
    """A temporary view USING cordwood reads a topic in SQL."""
    spark.sql(
        f"create or replace temporary view t using cordwood options (subscribe 't', path '{data}')"
    )
    (row,) = spark.sql("select count(*) n, max(offset) last from t").collect()
    assert (row.n, row.last) == (200, 299)
