"""Administration with real Kafka clients: topics, settings, deleted records and offsets by time."""

from __future__ import annotations

import asyncio
import itertools

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from kafka.admin import NewTopic as PythonTopic

from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, create_topic, kcat

NAMES = map("topic-{}".format, itertools.count())
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own topics."""
    with Broker(durability="os") as running:
        yield running


@pytest.fixture
def operator(broker):
    """An admin client kept alive by a fixture: garbage collection would cancel its requests."""
    return AdminClient({"bootstrap.servers": broker.kafka})


@pytest.fixture
def python_operator(broker):
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield client
    client.close()


@pytest.fixture
def topic(broker):
    return create_topic(broker.kafka, next(NAMES))


def fill(address, topic, count, *, step_ms=0, first_ms=1_700_000_000_000):
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(count):
        at = first_ms + number * step_ms
        producer.produce(topic, b"%d" % number, partition=0, timestamp=at)
    assert producer.flush(PATIENCE_S) == 0


# --- creating and deleting topics -----------------------------------------------------------


def test_confluent_creates_grows_and_deletes_a_topic(broker, operator):
    """The next metadata request shows each creation, new partition count and deletion."""
    name = next(NAMES)

    def partitions():
        return len(operator.list_topics(name, timeout=PATIENCE_S).topics[name].partitions)

    operator.create_topics([NewTopic(name, 2, 1)])[name].result(PATIENCE_S)
    assert partitions() == 2
    operator.create_partitions([NewPartitions(name, 5)])[name].result(PATIENCE_S)
    assert partitions() == 5
    operator.delete_topics([name])[name].result(PATIENCE_S)
    assert name not in operator.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("exists", 1, 1), "TOPIC_ALREADY_EXISTS"),
        (NewTopic("no spaces", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("none", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("replicas", 1, 3), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("config", 1, 1, config={"retentoin.ms": "1"}), "INVALID_CONFIG"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_refusal_reaches_the_client_with_code_and_remedy(broker, operator, wanted, code):
    """A refused CreateTopics returns its error code and a message, not a timeout."""
    if wanted.topic == "exists":
        operator.create_topics([NewTopic("exists", 1, 1)])["exists"].exception(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException, match=code) as refused:
        operator.create_topics([wanted])[wanted.topic].result(PATIENCE_S)
    assert len(refused.value.args[0].str()) > 20


def test_validation_creates_nothing(broker, operator):
    """CreateTopics with validate_only succeeds and creates no topic."""
    name = next(NAMES)
    dry = operator.create_topics([NewTopic(name, 2, 1)], validate_only=True)
    dry[name].result(PATIENCE_S)
    assert name not in operator.list_topics(timeout=PATIENCE_S).topics


def test_kafka_python_creates_and_deletes_a_topic(broker, python_operator):
    """The kafka-python client creates and deletes topics with the newest versions of these APIs."""
    name = next(NAMES)
    python_operator.create_topics([PythonTopic(name, 3, 1)])
    assert name in python_operator.list_topics()
    python_operator.delete_topics([name])
    assert name not in python_operator.list_topics()


async def test_aiokafka_creates_grows_trims_and_deletes_a_topic(broker):
    """The aiokafka client uses older API versions to create, grow, trim and delete a topic."""
    name = next(NAMES)
    client = AIOKafkaAdminClient(bootstrap_servers=broker.kafka)
    await client.start()
    try:
        await client.create_topics([AioTopic(name, 1, 1)])
        await client.create_partitions({name: AioPartitions(2)})
        (described,) = await client.describe_topics([name])
        assert len(described["partitions"]) == 2
        await asyncio.to_thread(fill, broker.kafka, name, 10)
        tp = aiokafka.TopicPartition(name, 0)
        assert await client.delete_records({tp: RecordsToDelete(4)}) == {tp: 4}
        await client.delete_topics([name])
        assert name not in await client.list_topics()
    finally:
        await client.close()


@pytest.mark.needs("kcat")
def test_kcat_lists_topics_and_partitions(broker, topic):
    """``kcat -L`` prints the topic's partitions with leader, replicas and in-sync replicas."""
    listed = kcat("-L", "-b", broker.kafka, "-t", topic).decode()
    assert f'topic "{topic}" with 1 partitions' in listed
    assert "partition 0, leader 1, replicas: 1, isrs: 1" in listed


# --- settings -------------------------------------------------------------------------------


def settings_of(operator, topic):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (described,) = operator.describe_configs([resource]).values()
    return {name: entry.value for name, entry in described.result(PATIENCE_S).items()}


def test_confluent_changes_one_setting_and_leaves_the_others(operator, broker):
    """IncrementalAlterConfigs sets, appends and deletes one setting and keeps the others."""
    topic = create_topic(broker.kafka, next(NAMES), segment_bytes=100_000)

    def change(name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        (done,) = operator.incremental_alter_configs([resource]).values()
        done.result(PATIENCE_S)
        return settings_of(operator, topic)

    assert change("retention.ms", "5000", AlterConfigOpType.SET)["retention.ms"] == "5000"
    after = change("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert after["cleanup.policy"] == "delete,compact"
    after = change("retention.ms", None, AlterConfigOpType.DELETE)
    assert (after["retention.ms"], after["segment.bytes"]) == ("604800000", "100000")
    with pytest.raises(confluent_kafka.KafkaException, match=r"segment\.bytes"):
        change("segment.byte", "1", AlterConfigOpType.SET)


def test_kafka_python_describes_and_changes_settings(broker, python_operator, topic):
    """DescribeConfigs distinguishes settings of the topic from defaults."""
    resource = PythonResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7000"})
    python_operator.alter_configs([resource])
    modified = python_operator.describe_configs([resource])["topic"][topic]
    assert {name: each["value"] for name, each in modified.items()} == {"retention.ms": "7000"}
    every = PythonResource(ConfigResourceType.TOPIC, topic)
    everything = python_operator.describe_configs([every], config_filter="all")
    assert everything["topic"][topic]["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"


def test_a_setting_takes_effect_at_once(broker, operator, topic):
    """A smaller max.message.bytes rejects the very next batch, without a restart."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})

    def send():
        outcome = []
        producer.produce(topic, b"v" * 2_000, on_delivery=lambda error, _: outcome.append(error))
        assert producer.flush(PATIENCE_S) == 0
        return outcome[0]

    assert send() is None
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    (done,) = operator.incremental_alter_configs([resource]).values()
    done.result(PATIENCE_S)
    assert send().name() == "MSG_SIZE_TOO_LARGE"


def test_the_other_listeners_are_found_through_this_one(broker, operator):
    """DescribeConfigs of the broker shows the bound addresses of its other listeners."""
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    (described,) = operator.describe_configs([resource]).values()
    shown = described.result(PATIENCE_S)
    assert shown["http"].value == broker.http
    assert shown["control"].value == broker.control
    assert shown["ingress"].value == broker.ingress


# --- records and offsets --------------------------------------------------------------------


def test_deleted_records_are_gone_for_readers(broker, operator, topic):
    """DeleteRecords moves the log start to the given offset; -1 deletes all records."""
    fill(broker.kafka, topic, 10)
    (done,) = operator.delete_records([TopicPartition(topic, 0, 4)]).values()
    assert done.result(PATIENCE_S).low_watermark == 4
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "x"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (4, 10)
    consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    values = [m.value() for m in consumer.consume(6, PATIENCE_S)]
    assert values == [b"4", b"5", b"6", b"7", b"8", b"9"]
    consumer.close()
    (done,) = operator.delete_records([TopicPartition(topic, 0, -1)]).values()
    assert done.result(PATIENCE_S).low_watermark == 10
    (beyond,) = operator.delete_records([TopicPartition(topic, 0, 99)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="OFFSET_OUT_OF_RANGE"):
        beyond.result(PATIENCE_S)


def test_a_compacted_topic_keeps_its_records(broker, operator):
    """DeleteRecords on a compacted topic fails with POLICY_VIOLATION."""
    topic = create_topic(broker.kafka, next(NAMES), cleanup_policy="compact")
    (refused,) = operator.delete_records([TopicPartition(topic, 0, 0)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="POLICY_VIOLATION"):
        refused.result(PATIENCE_S)


def test_readers_seek_by_time(broker, topic):
    """Three libraries find the first record at or after a timestamp, or none past the last."""
    first_ms = 1_700_000_000_000
    fill(broker.kafka, topic, 24, step_ms=HOUR_MS, first_ms=first_ms)
    exact, between, late = first_ms + 5 * HOUR_MS, first_ms + 5 * HOUR_MS + 1, first_ms * 2
    wanted = {exact: 5, between: 6, first_ms - 1: 0}

    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": "x"})
    python = kafka.KafkaConsumer(bootstrap_servers=broker.kafka)
    tp = kafka.TopicPartition(topic, 0)
    for at_ms, offset in wanted.items():
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, at_ms)], PATIENCE_S)
        assert found.offset == offset
        assert python.offsets_for_times({tp: at_ms})[tp].offset == offset
    assert python.offsets_for_times({tp: late})[tp] is None
    consumer.assign([TopicPartition(topic, 0, 6)])
    (message,) = consumer.consume(1, PATIENCE_S)
    assert message.value() == b"6"
    consumer.close()
    python.close()

    async def aio():
        reader = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.kafka)
        await reader.start()
        try:
            where = aiokafka.TopicPartition(topic, 0)
            found = await reader.offsets_for_times({where: between})
            reader.assign([where])
            reader.seek(where, found[where].offset)
            return (await reader.getone()).value
        finally:
            await reader.stop()

    assert asyncio.run(asyncio.wait_for(aio(), PATIENCE_S)) == b"6"


def test_a_running_consumer_finds_new_partitions(broker, operator, topic):
    """After its next metadata refresh a consumer also reads new partitions, from the start."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.05)
    operator.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"new", partition=1)
    assert producer.flush(PATIENCE_S) == 0
    while (message := consumer.poll(PATIENCE_S)) is None or message.error():
        assert message is not None, "nothing came"
    assert (message.partition(), message.value()) == (1, b"new")
    consumer.close()


def test_tools_that_ask_where_partitions_are_get_honest_answers(broker):
    """Placement requests get valid answers from a single broker.

    No reassignment is listed, an election is not needed, and advertised.listeners has Kafka's
    form.
    """
    create_topic(broker.kafka, "placed")
    python = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        assert not python.list_partition_reassignments()
    finally:
        python.close()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("placed", 0)])
    (error,) = elected.result(PATIENCE_S).values()
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED
    (described,) = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.BROKER, "1")]
    ).values()
    listeners = described.result(PATIENCE_S)["advertised.listeners"].value
    assert listeners == f"PLAINTEXT://{broker.kafka}"
