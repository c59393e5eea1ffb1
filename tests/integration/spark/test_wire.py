"""Reading segment files and reading a broker over Kafka's protocol give equal results."""

import confluent_kafka
import pytest

from cordwood.errors import OffsetOutOfRange, UnavailableError, UnknownTopic
from cordwood.model import TopicPartition
from cordwood.pipeline.source.data_directory import SegmentFileLog
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import parse_options
from cordwood.testing import Broker

pytest.importorskip("pyspark")

TP = TopicPartition("t", 0)
RECORDS = 500


@pytest.fixture(scope="module")
def broker():
    with Broker(durability="os") as running:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            fill(running, codec)
        yield running


def fill(running, codec):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": running.kafka, "compression.type": codec, "linger.ms": 2}
    )
    for number in range(RECORDS // 5):
        producer.produce(
            "t",
            key=b"k%d" % (number % 7) if number % 3 else None,
            value=b"%s %d" % (codec.encode(), number) if number % 5 else None,
            headers=[("h", b"x")] if number % 2 else None,
            partition=0,
        )
    assert producer.flush(30) == 0


def options(running, **fields):
    quick = {"fetchOffset.numRetries": "0", "kafkaConsumer.pollTimeoutMs": "5000"}
    where = {"subscribe": "t", "kafka.bootstrap.servers": running.kafka}
    return parse_options({**where, **quick, **fields}, streaming=False)


@pytest.fixture
def wire(broker):
    log = KafkaLog(options(broker))
    yield log
    log.close()


def rows(broker, **fields):
    """Return every row, read as an executor reads it."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from cordwood.pipeline.source.source import CordwoodSource
    from support.schemas import full_schema

    source = CordwoodSource(CaseInsensitiveDict({"subscribe": "t", **fields}))
    reader = source.reader(full_schema())
    return [
        row
        for split in reader.partitions()
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]


def test_both_paths_give_the_same_rows(broker):
    """Files and broker return equal rows for every codec, with nulls and headers."""
    files = rows(broker, path=str(broker.data))
    wire = rows(broker, **{"kafka.bootstrap.servers": broker.kafka})
    assert len(files) == RECORDS
    assert wire == files


def test_both_paths_see_the_same_log(broker, wire):
    """Files and broker agree on topics, offset bounds, chunks and times."""
    directory = SegmentFileLog(str(broker.data))
    assert wire.topics()["t"] == directory.topics()["t"]
    assert wire.bounds([TP]) == directory.bounds([TP])
    for whole in (Range(TP, 0, RECORDS), Range(TP, 123, 321)):
        for log in (wire, directory):
            chunks = list(log.chunks(whole, None))
            assert chunks[0].start_offset == whole.start
            assert chunks[-1].end_offset >= whole.end
    first_ms = rows(broker, path=str(broker.data))[0]["timestamp"].timestamp() * 1000
    for time_ms in (0, int(first_ms), 2**50):
        assert wire.find_time(TP, time_ms) == directory.find_time(TP, time_ms)


def test_what_is_not_there_is_named(broker, wire):
    """A missing partition and an offset past the end raise specific errors."""
    missing = TopicPartition("nowhere", 3)
    assert wire.bounds([missing]) == {}
    with pytest.raises(UnknownTopic, match="no nowhere-3"):
        list(wire.chunks(Range(missing, 0, 1), None))
    with pytest.raises((UnavailableError, OffsetOutOfRange)):
        list(wire.chunks(Range(TP, RECORDS + 5, RECORDS + 9), None))


def test_a_broker_that_is_away_is_a_clear_error():
    """An unreachable broker raises an error that names the option."""
    away = parse_options(
        {
            "subscribe": "t",
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "1",
        },
        streaming=False,
    )
    with pytest.raises(
        UnavailableError, match=r"no broker replies at 127\.0\.0\.1:1.*kafka\.bootstrap"
    ):
        KafkaLog(away).topics()


def test_a_broker_that_comes_back_is_asked_again(tmp_path):
    """After a broken connection, the client reconnects and gets the same reply."""
    with Broker(tmp_path / "data", durability="os") as running:
        fill(running, "none")
        log = KafkaLog(options(running, **{"fetchOffset.numRetries": "3"}))
        before = log.bounds([TP])
        for client in log._clients.values():
            client._connection._socket.close()
        assert log.bounds([TP]) == before
        log.close()


def test_a_commit_moves_the_groups_cursor(broker, wire):
    """A Kafka client sees the committed offset."""
    wire.commit("spark-query", {TP: 123})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "spark-query"}
    )
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition("t", 0)], timeout=20)
        assert found.offset == 123
    finally:
        consumer.close()


def test_files_are_preferred_and_the_wire_is_the_way_out(broker, tmp_path):
    """With path and broker given, files are used if reachable, else the broker."""
    from cordwood.pipeline.source.log_access import reach_log

    assert isinstance(reach_log(options(broker, path=str(broker.data))), SegmentFileLog)
    assert isinstance(reach_log(options(broker, path=str(tmp_path))), KafkaLog)
