"""``df.write`` and ``df.writeStream.format("cordwood")`` write each row exactly once."""

import shutil
from contextlib import closing

import confluent_kafka
import confluent_kafka.admin
import pytest
from kafka.partitioner.default import murmur2
from msgspec.structs import replace

from cordwood.pipeline.runtime.broker_api import BrokerApi
from cordwood.spark import topic, topic_stream
from cordwood.testing import Broker
from support.http import JsonClient

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker():
    with Broker(durability="os") as running:
        yield running


def rows(spark, broker, name, *columns):
    """Return a topic's rows ordered by partition and offset."""
    frame = topic(spark, name, broker=broker.kafka, includeHeaders="true")
    ordered = frame.orderBy("partition", "offset").select(*columns).collect()
    return [tuple(row) for row in ordered]


def write(frame, broker, **options):
    fields = {"kafka.bootstrap.servers": broker.kafka, **options}
    frame.write.format("cordwood").options(**fields).mode("append").save()


def make_topic(broker, name, partitions):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    new = confluent_kafka.admin.NewTopic(name, partitions)
    admin.create_topics([new])[name].result(30)


def staged(broker):
    directory = broker.data / "staging"
    return list(directory.iterdir()) if directory.exists() else []


def test_rows_become_records_with_keys_headers_and_nulls(spark, broker):
    """A null value is a tombstone, empty bytes are a value; strings are UTF-8."""
    header = "array(struct('h' as key, cast('x' as binary) as value))"
    frame = spark.sql(
        f"""select 'k' key, 'väl' value, {header} headers union all
        select null, '', null union all select 'gone', null, array()"""
    ).coalesce(1)
    write(frame, broker, topic="kinds")
    found = rows(spark, broker, "kinds", "key", "value", "headers")
    assert found == [
        (b"k", "väl".encode(), [("h", b"x")]),
        (None, b"", None),
        (b"gone", None, None),
    ]
    assert staged(broker) == []


def test_keys_go_where_a_kafka_producer_would_put_them(spark, broker):
    """Keys are partitioned by murmur2, as in Kafka; the column ``partition`` overrides it."""
    make_topic(broker, "parted", 5)
    frame = spark.range(0, 500, 1, 3).selectExpr("concat('key-', id) key", "'v' value")
    write(frame, broker, topic="parted")
    found = rows(spark, broker, "parted", "partition", "key")
    assert len(found) == 500
    assert all((murmur2(key) & 0x7FFFFFFF) % 5 == partition for partition, key in found)
    write(spark.sql("select 'mine' key, 'v' value, 3 partition"), broker, topic="parted")
    assert (3, b"mine") in rows(spark, broker, "parted", "partition", "key")


def test_the_topic_option_beats_the_column(spark, broker):
    """The option ``topic`` overrides the column ``topic``, as in Spark's Kafka sink."""
    frame = spark.sql("select 'v' value, 'column' topic")
    write(frame, broker)
    write(frame, broker, topic="option")
    assert len(rows(spark, broker, "column", "value")) == 1
    assert len(rows(spark, broker, "option", "value")) == 1


@pytest.mark.parametrize(
    ("sql", "options", "output"),
    [
        ("select 'v' value", {"tpoic": "t"}, "unknown sink option tpoic; did you mean topic"),
        ("select 'v' value", {}, "set the option topic, or give the rows a column topic"),
        ("select 'v' vaule", {"topic": "t"}, "no column value; did you mean vaule"),
        (
            "select 7 value",
            {"topic": "t"},
            "column value has type int, but must be binary or string",
        ),
        (
            "select 'v' value, 'x' headers",
            {"topic": "t"},
            "column headers has type string, but must",
        ),
        ("select 'v' value", {"topic": "t", "path": "/x"}, "path is not for the sink"),
        ("select 'v' value, cast(null as string) topic", {}, "has None, which is not a valid"),
        ("select 'v' value, 9 partition", {"topic": "one"}, "has 9, but topic one has 1 part"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(spark, broker, sql, options, output):
    """Invalid options and rows fail with a specific error, and no staged files remain."""
    with pytest.raises(Exception, match=output):  # Spark wraps our error in its own classes
        write(spark.sql(sql), broker, **options)
    assert staged(broker) == []


def test_a_repeated_batch_write_with_its_number_is_written_once(spark, broker):
    """Writing the same query and batch id again, as after a crash, adds nothing."""
    frame = spark.sql("select 'v' value")
    for batch in ("0", "0", "1", "1"):
        write(frame, broker, topic="numbered", queryId="mine", batchId=batch)
    assert len(rows(spark, broker, "numbered", "value")) == 2


# --- streams --------------------------------------------------------------------------------------


def start(spark, broker, source, target, checkpoint):
    stream = topic_stream(
        spark, source, broker=broker.kafka, startingOffsets="earliest", maxOffsetsPerTrigger=40
    )
    return (
        stream.select("key", "value")
        .writeStream.format("cordwood")
        .option("kafka.bootstrap.servers", broker.kafka)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def run(spark, broker, source, target, checkpoint):
    query = start(spark, broker, source, target, checkpoint)
    assert query.awaitTermination(120)


def fill(spark, broker, name, first, last):
    frame = spark.range(first, last, 1, 1).selectExpr("string(id) key", "concat('v', id) value")
    write(frame, broker, topic=name)


def test_a_stream_repeats_no_batch_whatever_its_checkpoint_forgot(spark, broker, tmp_path):
    """A batch that is missing from Spark's commit log after a crash is not written twice."""
    checkpoint = tmp_path / "checkpoint"
    fill(spark, broker, "from", 0, 100)
    run(spark, broker, "from", "to", checkpoint)
    commits = sorted((checkpoint / "commits").iterdir(), key=lambda path: path.name.zfill(9))
    commits[-1].unlink()
    fill(spark, broker, "from", 100, 130)
    run(spark, broker, "from", "to", checkpoint)
    found = rows(spark, broker, "to", "key", "value")
    assert found == [(b"%d" % i, b"v%d" % i) for i in range(130)]
    assert staged(broker) == []


def test_batches_fit_max_message_bytes_and_one_record_that_does_not_is_named(spark, broker):
    """Tasks split batches at the topic's limit; a larger single record fails with an error."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    new = confluent_kafka.admin.NewTopic("small", 1, config={"max.message.bytes": "5000"})
    admin.create_topics([new])["small"].result(30)
    write(spark.range(300).selectExpr("repeat('x', 100) value").coalesce(1), broker, topic="small")
    assert len(rows(spark, broker, "small", "value")) == 300
    with pytest.raises(Exception, match=r"max\.message\.bytes=5000 of topic small"):
        write(spark.sql("select repeat('x', 6000) value"), broker, topic="small")
    assert len(rows(spark, broker, "small", "value")) == 300
    assert staged(broker) == []


def test_a_batch_written_again_after_its_topic_was_deleted_is_written_again(spark, broker):
    """Deliveries are tracked by topic id, so a recreated topic receives the batch once more."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.kafka})
    frame = spark.range(10).selectExpr("cast(id as string) value")
    options = {"topic": "renewed", "queryId": "q-renewed", "batchId": "3"}
    for _ in range(2):
        write(frame, broker, **options)
        write(frame, broker, **options)
        assert len(rows(spark, broker, "renewed", "value")) == 10
        admin.delete_topics(["renewed"])["renewed"].result(30)


def test_a_checkpoint_restored_from_long_ago_is_refused(spark, broker, tmp_path):
    """A checkpoint older than the last delivery is an error, as records could be skipped."""
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    fill(spark, broker, "old", 0, 40)
    run(spark, broker, "old", "old-to", checkpoint)
    shutil.copytree(checkpoint, backup)
    fill(spark, broker, "old", 40, 120)
    run(spark, broker, "old", "old-to", checkpoint)
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    query = start(spark, broker, "old", "old-to", checkpoint)
    with pytest.raises(Exception, match="its checkpoint is older than its last delivery"):
        query.awaitTermination(120)
    assert len(rows(spark, broker, "old-to", "key")) == 120


def test_what_cannot_be_reached_is_uploaded(spark, broker, monkeypatch):
    """If the data directory is not reachable, records are uploaded over HTTP."""
    from cordwood.pipeline.runtime.staging import StagingTarget

    status = BrokerApi.status
    monkeypatch.setattr(BrokerApi, "status", lambda self: replace(status(self), data="/not/here"))
    from pyspark.sql.types import StructType

    from cordwood.pipeline.sink import parse_sink_options
    from cordwood.pipeline.sink.sink import TopicWriter

    frame = spark.range(0, 20, 1, 1).selectExpr("string(id) key", "concat('v', id) value")
    options = parse_sink_options(
        {"kafka.bootstrap.servers": broker.kafka, "topic": "far"}, streaming=False
    )
    writer = TopicWriter(options, StructType(frame.schema.fields), overwrite=False)
    with closing(BrokerApi(options.where)) as api:
        assert not StagingTarget.of(api).is_reachable()
    staged_there = writer.write(iter(frame.toArrow().to_batches()))
    writer.commit([staged_there])
    assert rows(spark, broker, "far", "key") == [(b"%d" % i,) for i in range(20)]
    assert JsonClient(broker.http).get("/api/deliveries")["deliveries"]
