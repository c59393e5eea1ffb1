"""Spark's own Kafka source and sink work with our Kafka listener and agree with our source.

The tests need the connector's jars: ``scripts/kafka_jars.sh DIR`` downloads them, and
``CORDWOOD_KAFKA_JARS`` names their directory. Without them the tests are skipped with a reason.
"""

from __future__ import annotations

import confluent_kafka
import pytest

from cordwood.testing import Broker
from support.kafka_clients import create_topic
from support.kafka_jars import CONNECTOR, FETCH, has

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has(*CONNECTOR), reason=f"missing tool: Spark's Kafka jars {FETCH}"),
]

COLUMNS = ("partition", "offset", "key", "value", "timestamp")
PATIENCE_S = 90
START_MS = 4_000_000_000_000  # in the future, so retention does not apply


@pytest.fixture(scope="module")
def broker():
    """A broker for all tests of this module."""
    with Broker(durability="os") as running:
        yield running


def options(broker, topic, **more):
    """Return options that both sources accept."""
    return {"kafka.bootstrap.servers": broker.kafka, "subscribe": topic, **more}


def rows(frame):
    """Return the records in order."""
    return sorted(tuple(row) for row in frame.select(*COLUMNS).collect())


def write(spark, broker, topic, count):
    """Write keys and values with Spark's batch sink."""
    frame = spark.range(count).selectExpr("cast(id as string) key", "cast(id * 2 as string) value")
    where = {"kafka.bootstrap.servers": broker.kafka, "topic": topic}
    frame.write.format("kafka").options(**where).save()


def copy(spark, broker, source, target, checkpoint, **more):
    """Stream all available records from one topic to another."""
    where = options(broker, source, startingOffsets="earliest", **more)
    read = spark.readStream.format("kafka").options(**where).load().select("key", "value")
    sink = {"kafka.bootstrap.servers": broker.kafka, "topic": target}
    query = (
        read.writeStream.format("kafka")
        .options(**sink, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S), query.status


def test_what_sparks_sink_writes_both_sources_read_alike(spark, broker):
    """``format("kafka")`` and ``format("cordwood")`` read the same schema and rows."""
    create_topic(broker.kafka, "written", partitions=3)
    write(spark, broker, "written", 1000)
    theirs = spark.read.format("kafka").options(**options(broker, "written")).load()
    ours = spark.read.format("cordwood").options(**options(broker, "written")).load()
    assert theirs.schema.simpleString() == ours.schema.simpleString()
    assert len(rows(theirs)) == 1000
    assert rows(theirs) == rows(ours)


def test_headers_and_ranges_by_offset_and_time(spark, broker):
    """Both sources read the same ranges by offset and by timestamp; headers are kept."""
    create_topic(broker.kafka, "ranged")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for number in range(100):
        stamp = START_MS + number
        producer.produce("ranged", b"v", b"k", timestamp=stamp, headers=[("h", b"%d" % number)])
    assert producer.flush(PATIENCE_S) == 0
    by_offset = {
        "startingOffsets": '{"ranged": {"0": 10}}',
        "endingOffsets": '{"ranged": {"0": 20}}',
    }
    by_time = {"startingTimestamp": str(START_MS + 50), "includeHeaders": "true"}
    for asked, count in ((by_offset, 10), (by_time, 50)):
        where = options(broker, "ranged", **asked)
        theirs = spark.read.format("kafka").options(**where).load()
        ours = spark.read.format("cordwood").options(**where).load()
        assert len(rows(theirs)) == count
        assert rows(theirs) == rows(ours)
    (first,) = theirs.orderBy("offset").select("headers").take(1)
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("h", b"50")]


def test_a_stream_copies_a_topic_and_resumes_at_its_checkpoint(spark, broker, tmp_path):
    """A second run of a streaming copy continues at its checkpoint and copies only new records."""
    create_topic(broker.kafka, "copied", partitions=2)
    create_topic(broker.kafka, "copies")
    for total in (300, 600):
        write(spark, broker, "copied", 300)
        copy(spark, broker, "copied", "copies", tmp_path / "checkpoint", maxOffsetsPerTrigger=100)
        copies = spark.read.format("cordwood").options(**options(broker, "copies")).load()
        assert copies.count() == total


def test_a_committed_reader_sees_no_aborted_and_no_undecided_record(spark, broker, tmp_path):
    """``read_committed`` skips aborted and open transactions in batch and streaming reads."""
    create_topic(broker.kafka, "decided")
    create_topic(broker.kafka, "decisions")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": "decider"}
    )
    producer.init_transactions(PATIENCE_S)
    for outcome in ("committed", "aborted", "committed", "undecided"):
        producer.begin_transaction()
        for number in range(50):
            producer.produce("decided", f"{outcome} {number}")
        assert producer.flush(PATIENCE_S) == 0
        if outcome == "committed":
            producer.commit_transaction(PATIENCE_S)
        elif outcome == "aborted":
            producer.abort_transaction(PATIENCE_S)
    level = {"kafka.isolation.level": "read_committed"}
    batch = spark.read.format("kafka").options(**options(broker, "decided", **level)).load()
    copy(spark, broker, "decided", "decisions", tmp_path / "checkpoint", **level)
    stream = spark.read.format("kafka").options(**options(broker, "decisions")).load()
    expected = sorted([f"committed {number}" for number in range(50)] * 2)
    for frame in (batch, stream):
        values = [row.value for row in frame.selectExpr("cast(value as string) value").collect()]
        assert sorted(values) == expected
    producer.abort_transaction(PATIENCE_S)
