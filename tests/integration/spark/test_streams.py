"""``spark.readStream.format("cordwood")`` reads each record once, also across restarts."""

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.model import TopicPartition
from cordwood.spark import lag, topic_stream
from cordwood.testing import Broker
from support.datadir import HandMade, records
from support.lines import ask

pytestmark = pytest.mark.spark


@pytest.fixture
def log(data):
    made = HandMade(data, TopicPartition("t", 0))
    made.append(*(records(start, start + 10) for start in range(0, 100, 10)))
    made.cut()
    made.publish()
    yield made
    made.close()


def run(frame, checkpoint, out):
    """Run a query over all available records and return its progress reports."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(out))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query.recentProgress


def offsets(spark, out):
    return sorted(row.offset for row in spark.read.parquet(str(out)).collect())


def test_available_now_reads_in_limited_batches_and_goes_on_after_a_restart(
    spark, data, log, tmp_path
):
    """Every record is read once, although segments are sealed and reclaimed between the runs."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def stream():
        return topic_stream(
            spark,
            "t",
            path=str(data),
            columns=["offset", "value"],
            startingOffsets="earliest",
            maxOffsetsPerTrigger=40,
        )

    progress = run(stream(), checkpoint, out)
    assert [report["numInputRows"] for report in progress if report["numInputRows"]] == [40, 40, 20]
    assert offsets(spark, out) == list(range(100))
    log.append(records(100, 130))
    log.cut()
    log.reclaim(0)
    log.append(records(130, 150))
    log.publish()
    progress = run(stream(), checkpoint, out)
    assert offsets(spark, out) == list(range(150))
    (source,) = progress[0]["sources"]
    assert "150" in str(source["latestOffset"])


def test_a_stream_from_latest_begins_where_it_was_started(spark, data, log, tmp_path):
    """The first, empty batch stores the start offset, and the next run continues from it."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def stream():
        return topic_stream(spark, "t", path=str(data), columns=["offset"])

    run(stream(), checkpoint, out)
    log.append(records(100, 120))
    log.publish()
    run(stream(), checkpoint, out)
    assert offsets(spark, out) == list(range(100, 120))


def test_a_running_query_follows_appends_and_shows_its_lag(spark, data, log):
    """A running query reads new records, and its progress reports the log's end offset."""
    query = (
        topic_stream(spark, "t", path=str(data), columns=["offset"], startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("followed")
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
        log.append(records(100, 105))
        log.publish()
        query.processAllAvailable()
        followed = spark.sql("select offset from followed order by offset").collect()
        assert [row.offset for row in followed] == list(range(105))
        assert "105" in str(query.lastProgress["sources"][0]["latestOffset"])
        assert lag(query) == {"t-0": 0}
    finally:
        query.stop()


def test_lost_records_fail_the_query_by_name(spark, data, log, tmp_path):
    """A query fails with the lost offsets if an unread segment was reclaimed."""
    from pyspark.errors import StreamingQueryException

    log.append(records(100, 110))
    log.publish()
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    frame = topic_stream(spark, "t", path=str(data), columns=["offset"], startingOffsets="earliest")
    run(frame, checkpoint, out)
    log.append(records(110, 120))
    log.cut()
    log.append(records(120, 130))
    log.publish()
    log.reclaim(0, purge=True)
    log.reclaim(100, purge=True)
    with pytest.raises(StreamingQueryException, match="offsets 110 to 120 were reclaimed"):
        run(frame, checkpoint, out)


def test_a_checkpoint_of_a_recreated_topic_stops_the_query_or_reads_it_whole(spark, tmp_path):
    """A recreated topic fails the query, or is read from offset 0 with failOnDataLoss=false."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    with (
        Broker(tmp_path / "served", durability="os") as broker,
        KafkaClient(broker.kafka) as client,
    ):

        def stream(fail):
            roads = {"broker": broker.kafka, "path": str(broker.data)}
            chosen = {"columns": ["offset"], "startingOffsets": "earliest"}
            return topic_stream(spark, "t", **roads, **chosen, failOnDataLoss=fail)

        put_all(broker, 10)
        run(stream("true"), checkpoint, out)
        assert offsets(spark, out) == list(range(10))
        client.delete_topic("t")
        put_all(broker, 25)
        with pytest.raises(Exception, match="topic t was deleted and created again"):
            run(stream("true"), checkpoint, out)
        assert offsets(spark, out) == list(range(10))
        run(stream("false"), checkpoint, out)
        assert offsets(spark, out) == sorted([*range(10), *range(25)])


def put_all(broker, count):
    for number in range(count):
        assert ask(broker.control, f"PUT t {number}") == b"OK"
