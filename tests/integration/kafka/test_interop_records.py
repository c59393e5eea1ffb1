"""Four Kafka clients read each other's records byte for byte."""

from __future__ import annotations

import itertools

import confluent_kafka
import pytest

from cordwood.model import Codec
from cordwood.testing import Broker
from support.kafka_clients import (
    CODECS,
    LIBRARIES,
    PATIENCE_S,
    Kcat,
    Sent,
    create_topic,
    stored_batches,
)

NAMES = map("topic-{}".format, itertools.count())
SEVERAL = [
    Sent(b"plain", b"key"),
    Sent(b"no key"),
    Sent(b"", b"empty value"),
    Sent(None, b"tombstone"),
    Sent(b"empty key", b""),
    Sent(b"headed", b"k", (("one", b"1"), ("two", b""), ("one", b"again"))),
    Sent(b"uml\xc3\xa4ut \x00\xff", b"\x00\x01"),
]
TEXTS = [Sent(b"value %d" % number * 20, b"key %d" % (number % 3)) for number in range(50)]
by_library = pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own topic."""
    with Broker(durability="os") as running:
        yield running


@pytest.fixture
def topic(broker):
    return create_topic(broker.kafka, next(NAMES))


@by_library
@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_in_the_codec_they_were_sent_in(broker, topic, client, codec):
    """The broker stores batches in the producer's codec, and every client reads them."""
    client.send(broker.kafka, topic, TEXTS, codec=codec)
    assert {header.codec for header in stored_batches(broker.data, topic)} == {Codec[codec.upper()]}
    for reader in LIBRARIES:
        assert reader.read(broker.kafka, topic, len(TEXTS)) == TEXTS, reader.name


@pytest.mark.needs("kcat")
@pytest.mark.parametrize("codec", CODECS)
def test_kcat_batches_are_stored_in_the_codec_they_were_sent_in(broker, topic, codec):
    """The old librdkafka in kcat compresses only if Produce is advertised from version 0."""
    Kcat().send(broker.kafka, topic, TEXTS, codec=codec)
    assert {header.codec for header in stored_batches(broker.data, topic)} == {Codec[codec.upper()]}
    for reader in (Kcat(), *LIBRARIES):
        found = reader.read(broker.kafka, topic, len(TEXTS))
        assert [record[:2] for record in found] == [record[:2] for record in TEXTS], reader.name


@by_library
def test_keys_headers_nulls_and_empty_values_stay_what_they_are(broker, topic, client):
    """Keys, values and headers are kept; null and empty stay distinct."""
    client.send(broker.kafka, topic, SEVERAL)
    for reader in LIBRARIES:
        assert reader.read(broker.kafka, topic, len(SEVERAL)) == SEVERAL, reader.name


def test_a_null_header_value_is_not_an_empty_one(broker, topic):
    """All clients read a null header value, which only librdkafka can send."""
    headed = Sent(b"value", b"key", (("nil", None), ("empty", b"")))
    LIBRARIES[0].send(broker.kafka, topic, [headed])
    for reader in LIBRARIES:
        assert reader.read(broker.kafka, topic, 1) == [headed], reader.name


@pytest.mark.needs("kcat")
def test_kcat_reads_nulls_empties_and_headers(broker, topic):
    """The kcat client reads null and empty keys and values, and headers."""
    LIBRARIES[0].send(broker.kafka, topic, SEVERAL)
    found = Kcat().read(broker.kafka, topic, len(SEVERAL))
    assert [record[:2] for record in found] == [record[:2] for record in SEVERAL]
    assert found[5].headers == SEVERAL[5].headers


@by_library
@pytest.mark.parametrize("size", [1, 100, 16_383, 16_384, 100_000, 1_000_000])
def test_records_of_any_size_come_back_whole(broker, topic, client, size):
    """Records from one byte to a megabyte are read whole, around the listener's buffer sizes."""
    values = [bytes([number]) * size for number in range(3)]
    client.send(broker.kafka, topic, [Sent(value) for value in values])
    reader = LIBRARIES[(LIBRARIES.index(client) + 1) % len(LIBRARIES)]
    assert [record.value for record in reader.read(broker.kafka, topic, 3)] == values


def test_a_topic_of_many_partitions_keeps_order_in_each(broker):
    """Each of a hundred partitions keeps its records in the order they were produced."""
    topic = create_topic(broker.kafka, next(NAMES), partitions=100)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "linger.ms": 20})
    for number in range(1000):
        producer.produce(topic, b"%d" % number, partition=number % 100)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "many"})
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(100)])
    found = consumer.consume(1000, timeout=PATIENCE_S)
    consumer.close()
    by_partition: dict[int, list[int]] = {}
    for message in sorted(found, key=lambda m: m.offset()):
        by_partition.setdefault(message.partition(), []).append(int(message.value()))
    assert by_partition == {n: list(range(n, 1000, 100)) for n in range(100)}
