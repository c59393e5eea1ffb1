"""Reading with four Kafka clients: start offsets, timestamps, long polls and fetch limits."""

from __future__ import annotations

import asyncio
import itertools
import time

import aiokafka
import confluent_kafka
import kafka
import pytest

from cordwood.decide.roll import RollReason
from cordwood.model import TopicPartition
from cordwood.testing import Broker
from support.kafka_clients import LIBRARIES, PATIENCE_S, Confluent, Kcat, Sent, create_topic, kcat
from support.logs import a_batch, an_empty_batch, headers_of

NAMES = map("topic-{}".format, itertools.count())
FIRST_MS = 1_700_000_000_000
STEPS = [Sent(b"value %d" % n, b"key", (), FIRST_MS + 1000 * n) for n in range(30)]
by_library = pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own topic."""
    with Broker(durability="os") as running:
        yield running


@pytest.fixture
def topic(broker):
    return create_topic(broker.kafka, next(NAMES))


@pytest.fixture
def steps(broker, topic):
    """Thirty records, one second apart, in batches of ten; the last batch is compressed."""
    for start, codec in ((0, "none"), (10, "none"), (20, "lz4")):
        Confluent().send(broker.kafka, topic, STEPS[start : start + 10], codec=codec)
    return topic


@by_library
@pytest.mark.parametrize("offset", [0, 1, 9, 10, 15, 20, 25, 29])
def test_reading_begins_at_the_very_offset_asked_for(broker, steps, client, offset):
    """Every client reads from the exact offset it asked for, also inside a batch."""
    assert client.read(broker.kafka, steps, 30 - offset, offset=offset) == STEPS[offset:]


@pytest.mark.needs("kcat")
@pytest.mark.parametrize("offset", [0, 5, 15, 25])
def test_kcat_reads_from_inside_a_batch(broker, steps, offset):
    """The old librdkafka in kcat reads from an offset inside a batch."""
    assert Kcat().read(broker.kafka, steps, 30 - offset, offset=offset) == STEPS[offset:]


@pytest.mark.needs("kcat")
def test_kcat_begins_at_a_time(broker, steps):
    """With ``-o s@<ms>`` kcat starts at the first record at or after that time."""
    wanted = f"s@{FIRST_MS + 16_500}"
    printed = kcat(
        "-C", "-b", broker.kafka, "-t", steps, "-p", "0", "-o", wanted, "-e", "-q", "-f", "%o\\n"
    )
    assert [int(line) for line in printed.split()] == list(range(17, 30))


TIMES = [
    (FIRST_MS - 1, 0),
    (FIRST_MS, 0),
    (FIRST_MS + 5000, 5),
    (FIRST_MS + 5001, 6),
    (FIRST_MS + 24_500, 25),
    (FIRST_MS + 29_000, 29),
    (FIRST_MS + 29_001, None),
]


@pytest.mark.parametrize(("timestamp_ms", "offset"), TIMES)
def test_a_time_becomes_the_first_offset_not_before_it(broker, steps, timestamp_ms, offset):
    """A timestamp maps to the first record at or after it, also inside a compressed batch.

    A timestamp past the newest record maps to no offset.
    """
    tp = kafka.TopicPartition(steps, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka)
    found = consumer.offsets_for_times({tp: timestamp_ms})[tp]
    consumer.close()
    assert (found and found.offset) == offset

    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "t"})
    asked = [confluent_kafka.TopicPartition(steps, 0, timestamp_ms)]
    (answer,) = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
    consumer.close()
    assert answer.offset == (confluent_kafka.OFFSET_END if offset is None else offset)


def test_aiokafka_finds_times_and_both_ends(broker, steps):
    """Older ListOffsets versions, as aiokafka uses them, find timestamps and both log ends."""

    async def ask():
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.kafka)
        await consumer.start()
        tp = aiokafka.TopicPartition(steps, 0)
        try:
            times = await consumer.offsets_for_times({tp: FIRST_MS + 12_345})
            first = await consumer.beginning_offsets([tp])
            end = await consumer.end_offsets([tp])
        finally:
            await consumer.stop()
        return times[tp].offset, first[tp], end[tp]

    assert asyncio.run(ask()) == (13, 0, 30)


def test_watermarks_are_the_ends_of_the_log(broker, steps):
    """The low and high watermarks that librdkafka reads are the two ends of the log."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "w"})
    ends = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(steps, 0), PATIENCE_S)
    consumer.close()
    assert ends == (0, 30)


def test_an_offset_past_the_end_is_reset_as_the_consumer_wishes(broker, steps):
    """OFFSET_OUT_OF_RANGE makes librdkafka apply its auto.offset.reset."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(steps, 0, 1000)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message.offset() == 0


@by_library
def test_a_waiting_consumer_gets_a_record_when_it_comes(broker, topic, client):
    """A long poll returns when a record arrives, well before its max wait."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "l", "fetch.wait.max.ms": 20_000}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.2) is None
    client.send(broker.kafka, topic, STEPS[:1])
    started = time.monotonic()
    message = consumer.poll(PATIENCE_S)
    took_s = time.monotonic() - started
    consumer.close()
    assert message.value() == STEPS[0].value
    assert took_s < 5


def test_a_fetch_waits_for_the_bytes_it_asks_for(broker, topic):
    """A fetch is answered when ``min_bytes`` are available or its max wait is over."""
    Confluent().send(broker.kafka, topic, STEPS[:1])
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.kafka, fetch_min_bytes=100_000, fetch_max_wait_ms=1500
    )
    tp = kafka.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    started = time.monotonic()
    while not (found := consumer.poll(200)):
        assert time.monotonic() - started < PATIENCE_S
    too_few_s = time.monotonic() - started
    assert len(found[tp]) == 1
    assert too_few_s >= 1.4

    Confluent().send(broker.kafka, topic, [Sent(bytes(90_000)), Sent(bytes(90_000))])
    started = time.monotonic()
    while not (found := consumer.poll(200)):
        assert time.monotonic() - started < PATIENCE_S
    consumer.close()
    assert len(found[tp]) == 2
    assert time.monotonic() - started < 1.4


def test_a_record_larger_than_the_fetch_limit_is_sent_all_the_same(broker, topic):
    """A fetch returns at least one batch, so a consumer with small limits makes progress."""
    Confluent().send(broker.kafka, topic, [Sent(bytes(300_000)), Sent(b"next")])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "s",
            "fetch.message.max.bytes": 1000,
            "fetch.max.bytes": 1000,
            "message.max.bytes": 1000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = consumer.consume(2, timeout=PATIENCE_S)
    consumer.close()
    assert [len(message.value()) for message in found] == [300_000, 4]


def test_what_was_written_is_there_after_a_restart(tmp_path):
    """Records of sealed and active segments are readable after a clean restart."""
    broker = Broker(tmp_path / "data", durability="os")
    broker.start()
    try:
        topic = create_topic(broker.kafka, "kept", segment_bytes=65_536)
        records = [Sent(bytes([n]) * 1000, b"k") for n in range(200)]
        for start in range(0, 200, 20):
            Confluent().send(broker.kafka, topic, records[start : start + 20])
        broker.restart()
        assert Confluent().read(broker.kafka, topic, 200) == records
        assert Confluent().read(broker.kafka, topic, 50, offset=150) == records[150:]
    finally:
        broker.stop()


@by_library
def test_segments_that_compaction_emptied_are_passed_over(broker, topic, client):
    """Clients read past dozens of segments that compaction emptied.

    librdkafka stops after about ten replies without a record, so the broker must skip them.
    """
    partition = broker.service.broker.store.partition(TopicPartition(topic, 0))

    def fill() -> None:
        for number in range(60):
            batch = a_batch(b"v%d" % number) if number in {0, 59} else an_empty_batch()
            partition.append(batch, headers_of(batch))
            partition.roll(RollReason.DEMAND)
        partition.publish()

    broker.run(lambda: broker.service.broker.topics.on_writer(fill))
    assert [got.value for got in client.read(broker.kafka, topic, 2)] == [b"v0", b"v59"]
