"""Producing with four Kafka clients: acks, rejected batches, timestamps, automatic topics."""

from __future__ import annotations

import itertools
import time

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException

from cordwood.model import TimestampType
from cordwood.testing import Broker
from support.kafka_clients import (
    LIBRARIES,
    PATIENCE_S,
    AioKafka,
    Confluent,
    KafkaPython,
    Kcat,
    Sent,
    create_topic,
    kcat,
    stored_batches,
)

NAMES = map("topic-{}".format, itertools.count())
TEXTS = [Sent(b"value %d" % number, b"key %d" % number) for number in range(20)]
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
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_whatever_acks_are_asked_for(broker, topic, client, acks):
    """Records are stored and readable with acks 0, 1 and all."""
    client.send(broker.kafka, topic, TEXTS, acks=acks)
    assert client.read(broker.kafka, topic, len(TEXTS)) == TEXTS


@pytest.mark.needs("kcat")
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_kcat_records_arrive_whatever_acks_are_asked_for(broker, topic, acks):
    """The old librdkafka in kcat stores records with acks 0, 1 and all."""
    Kcat().send(broker.kafka, topic, TEXTS, acks=acks)
    found = Kcat().read(broker.kafka, topic, len(TEXTS))
    assert [record[:2] for record in found] == [record[:2] for record in TEXTS]


REFUSED = [
    (Confluent(), KafkaException),
    (KafkaPython(), kafka.errors.MessageSizeTooLargeError),
    (AioKafka(), aiokafka.errors.MessageSizeTooLargeError),
]


@pytest.mark.parametrize(("client", "error"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_a_batch_above_max_message_bytes_is_refused_by_name(broker, client, error):
    """A batch above max.message.bytes fails with MESSAGE_TOO_LARGE and is not stored.

    A smaller batch that follows is stored.
    """
    topic = create_topic(broker.kafka, next(NAMES), max_message_bytes=10_000)
    with pytest.raises(error) as caught:
        client.send(broker.kafka, topic, [Sent(bytes(20_000))])
    if error is KafkaException:
        assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    client.send(broker.kafka, topic, [Sent(bytes(5_000))])
    assert [record.value for record in client.read(broker.kafka, topic, 1)] == [bytes(5_000)]


KEYLESS = [
    (Confluent(), KafkaException),
    (KafkaPython(), kafka.errors.KafkaError),  # InvalidRecordError for the bad record alone
    (AioKafka(), aiokafka.errors.UnknownError),  # aiokafka 0.14 does not know error 87
]


@pytest.mark.parametrize(("client", "error"), KEYLESS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_compacted_topic_refuses_a_record_without_a_key(broker, client, error, codec):
    """A batch with one record without a key fails with INVALID_RECORD, also if compressed."""
    topic = create_topic(broker.kafka, next(NAMES), cleanup_policy="compact")
    with pytest.raises(error) as caught:
        client.send(broker.kafka, topic, [*TEXTS, Sent(b"keyless")], codec=codec)
    if error is KafkaException:
        assert caught.value.args[0].code() == KafkaError.INVALID_RECORD
    client.send(broker.kafka, topic, TEXTS, codec=codec)
    assert client.read(broker.kafka, topic, len(TEXTS)) == TEXTS


def outcomes(address, topic, records) -> list[int]:
    """Produce records in one batch; return the error code of each, 0 for a stored one."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 200})
    codes = {}
    for number, record in enumerate(records):
        producer.produce(
            topic, record.value, record.key, partition=0,
            on_delivery=lambda error, _, at=number: codes.update({at: error and error.code()}),
        )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0, "not delivered in time"
    return [codes[at] or 0 for at in range(len(records))]


def test_librdkafka_learns_which_records_of_its_batch_are_bad(broker):
    """Two keyless records of 100 get INVALID_RECORD; the others are stored when sent again.

    librdkafka marks the others as part of a batch with an invalid record. (It does not tell them
    apart if only one record is bad.)
    """
    topic = create_topic(broker.kafka, next(NAMES), cleanup_policy="compact")
    bad = {42, 77}
    records = [Sent(b"value", None if at in bad else b"key %d" % at) for at in range(100)]
    codes = outcomes(broker.kafka, topic, records)
    assert {at for at, code in enumerate(codes) if code == KafkaError.INVALID_RECORD} == bad
    assert codes.count(KafkaError._INVALID_DIFFERENT_RECORD) == 98
    rest = [record for at, record in enumerate(records) if at not in bad]
    assert outcomes(broker.kafka, topic, rest) == [0] * 98


def test_kafka_python_learns_which_record_of_its_batch_is_bad(broker):
    """One keyless record fails with our reason, the other 99 only as part of its batch."""
    topic = create_topic(broker.kafka, next(NAMES), cleanup_policy="compact")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka, linger_ms=200)
    sent = [
        producer.send(topic, b"value", None if at == 42 else b"key", partition=0)
        for at in range(100)
    ]
    producer.flush(PATIENCE_S)
    producer.close()
    assert isinstance(sent[42].exception, kafka.errors.InvalidRecordError)
    assert "requires a key" in str(sent[42].exception)
    others = {type(future.exception) for at, future in enumerate(sent) if at != 42}
    assert others == {kafka.errors.KafkaError}


@by_library
def test_create_time_is_the_producers(broker, topic, client):
    """By default the broker stores the producer's timestamp as CreateTime."""
    client.send(broker.kafka, topic, [Sent(b"old", timestamp_ms=1_000_000_000_123)])
    (record,) = client.read(broker.kafka, topic, 1)
    assert record.timestamp_ms == 1_000_000_000_123
    (header,) = stored_batches(broker.data, topic)
    assert header.timestamp_type is TimestampType.CREATE


@by_library
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_append_time_is_the_brokers(broker, client, codec):
    """With LogAppendTime every record gets the broker's time and its batch stays readable."""
    topic = create_topic(broker.kafka, next(NAMES), message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    client.send(broker.kafka, topic, TEXTS, codec=codec)
    after = int(time.time() * 1000)
    found = client.read(broker.kafka, topic, len(TEXTS))
    assert [record.value for record in found] == [record.value for record in TEXTS]
    assert all(before <= record.timestamp_ms <= after for record in found)
    assert {h.timestamp_type for h in stored_batches(broker.data, topic)} == {TimestampType.APPEND}


def test_the_producer_gets_the_offset_of_its_record(broker, topic):
    """A delivery report contains the record's offset."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    answer = []
    for number in range(5):
        producer.produce(topic, b"%d" % number, on_delivery=lambda _, m: answer.append(m.offset()))
        producer.flush(PATIENCE_S)
    assert answer == [0, 1, 2, 3, 4]


def test_a_topic_that_is_not_there_is_made_by_the_first_who_produces(broker):
    """Producing to a missing topic creates it by default (auto.create.topics)."""
    topic = next(NAMES)
    Confluent().send(broker.kafka, topic, TEXTS)
    assert Confluent().read(broker.kafka, topic, len(TEXTS)) == TEXTS


def test_without_auto_create_producers_get_unknown_topic():
    """Without auto.create.topics, producing to a missing topic fails as an unknown topic."""
    with Broker(durability="os", auto_create_topics="false") as broker:
        with pytest.raises(KafkaException) as caught:
            Confluent().send(
                broker.kafka, "nowhere", TEXTS, **{"topic.metadata.propagation.max.ms": 500}
            )
        codes = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
        assert caught.value.args[0].code() in codes


@pytest.mark.needs("kcat")
def test_kcat_lists_what_there_is(broker):
    """``kcat -L`` prints the topic, its partition count and the broker's address."""
    topic = create_topic(broker.kafka, next(NAMES), partitions=3)
    listed = kcat("-L", "-b", broker.kafka, "-t", topic).decode()
    assert f'topic "{topic}" with 3 partitions' in listed
    assert f"at {broker.kafka}" in listed
