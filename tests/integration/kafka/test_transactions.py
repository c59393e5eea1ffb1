"""Transactions with real clients: committed records are read once, aborted ones never."""

from __future__ import annotations

import asyncio
import itertools

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import TopicPartition

from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, create_topic
from support.kafka_consumers import SETTINGS, ConfluentMember, read, settle, shared

NAMES = map("topic-{}".format, itertools.count())


class ConfluentTransactions:
    """A transactional producer of confluent-kafka (librdkafka)."""

    name = "confluent-kafka"

    def __init__(self, address, transactional_id):
        """Initialise transactions, which fences the previous producer with this id."""
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "transactional.id": transactional_id}
        )
        self.producer.init_transactions(PATIENCE_S)

    def write(self, topic, values, *, commit):
        """Write the values in one transaction, then commit or abort it."""
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(topic, value)
        assert self.producer.flush(PATIENCE_S) == 0  # stored before the commit or abort
        if commit:
            self.producer.commit_transaction(PATIENCE_S)
        else:
            self.producer.abort_transaction(PATIENCE_S)

    def close(self):
        """Nothing to close."""


class KafkaPythonTransactions:
    """A transactional producer of kafka-python."""

    name = "kafka-python"

    def __init__(self, address, transactional_id):
        """Initialise transactions."""
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id
        )
        self.producer.init_transactions()

    def write(self, topic, values, *, commit):
        """Write the values in one transaction, then commit or abort it."""
        self.producer.begin_transaction()
        for sent in [self.producer.send(topic, value) for value in values]:
            sent.get(PATIENCE_S)
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def close(self):
        """Close the producer, which ends its threads."""
        self.producer.close(timeout=PATIENCE_S)


class AioKafkaTransactions:
    """A transactional producer of aiokafka."""

    name = "aiokafka"

    def __init__(self, address, transactional_id):
        """Initialise transactions."""
        self.runner = asyncio.Runner()

        async def start():
            self.producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=transactional_id
            )
            await self.producer.start()

        self.runner.run(start())

    def write(self, topic, values, *, commit):
        """Write the values in one transaction, then commit or abort it."""

        async def write():
            await self.producer.begin_transaction()
            for value in values:
                await self.producer.send_and_wait(topic, value)
            if commit:
                await self.producer.commit_transaction()
            else:
                await self.producer.abort_transaction()

        self.runner.run(write())

    def close(self):
        """Stop the producer and close its event loop."""
        self.runner.run(self.producer.stop())
        self.runner.close()


WRITERS = (ConfluentTransactions, KafkaPythonTransactions, AioKafkaTransactions)


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own names."""
    with Broker(**SETTINGS) as running:
        yield running


@pytest.fixture
def topic(broker):
    return create_topic(broker.kafka, next(NAMES))


def read_all(address, topic, count, *, isolation="read_committed"):
    """Read values from the start until at least ``count`` are read and the end is reached."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, found
            if message.error() is None:
                found.append(message.value())
            elif len(found) >= count:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
    finally:
        consumer.close()


def read_kafka_python(address, topic, count):
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
    tp = kafka.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    found = []
    while len(found) < count:
        found += [r.value for records in consumer.poll(500).values() for r in records]
    consumer.close()
    return found


def read_aiokafka(address, topic, count):
    async def read_some():
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level="read_committed"
        )
        await consumer.start()
        tp = aiokafka.TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        try:
            return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read_some(), PATIENCE_S))


@pytest.mark.parametrize("writer_of", WRITERS, ids=lambda each: each.name)
def test_only_what_was_committed_is_read(broker, topic, writer_of):
    """A read_committed consumer sees only committed records; read_uncommitted sees all."""
    writer = writer_of(broker.kafka, f"tx-{topic}")
    try:
        writer.write(topic, [b"a1", b"a2"], commit=True)
        writer.write(topic, [b"x1", b"x2"], commit=False)
        writer.write(topic, [b"b1"], commit=True)
    finally:
        writer.close()
    wanted = [b"a1", b"a2", b"b1"]
    assert read_all(broker.kafka, topic, 3) == wanted
    assert read_kafka_python(broker.kafka, topic, 3) == wanted
    assert read_aiokafka(broker.kafka, topic, 3) == wanted
    everything = read_all(broker.kafka, topic, 5, isolation="read_uncommitted")
    assert everything == [b"a1", b"a2", b"x1", b"x2", b"b1"]


def test_an_open_transaction_holds_committed_readers_back(broker, topic):
    """An open transaction hides all later records from read_committed consumers until it ends.

    Other consumers are not affected.
    """
    slow = ConfluentTransactions(broker.kafka, f"slow-{topic}").producer
    slow.begin_transaction()
    slow.produce(topic, b"undecided")
    assert slow.flush(PATIENCE_S) == 0
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    plain.produce(topic, b"behind")
    assert plain.flush(PATIENCE_S) == 0
    assert read_all(broker.kafka, topic, 0) == []
    both = read_all(broker.kafka, topic, 2, isolation="read_uncommitted")
    assert both == [b"undecided", b"behind"]
    slow.commit_transaction(PATIENCE_S)
    assert read_all(broker.kafka, topic, 2) == [b"undecided", b"behind"]


def test_a_zombie_is_fenced(broker, topic):
    """A second producer with the same transactional id fences the first, whose commit fails."""
    old = ConfluentTransactions(broker.kafka, f"tx-{topic}").producer
    old.begin_transaction()
    old.produce(topic, b"lost")
    assert old.flush(PATIENCE_S) == 0
    new = ConfluentTransactions(broker.kafka, f"tx-{topic}")
    with pytest.raises(confluent_kafka.KafkaException, match="FENCED"):
        old.commit_transaction(PATIENCE_S)
    new.write(topic, [b"kept"], commit=True)
    assert read_all(broker.kafka, topic, 1) == [b"kept"]


def test_a_transaction_nobody_ends_is_aborted(broker, topic):
    """A transaction is aborted after its timeout, and consumers read the records behind it."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.kafka,
            "transactional.id": f"tx-{topic}",
            "transaction.timeout.ms": 1000,
            "message.timeout.ms": 1000,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"forgotten")
    assert producer.flush(PATIENCE_S) == 0
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    plain.produce(topic, b"after")
    assert plain.flush(PATIENCE_S) == 0
    consumer = ConfluentMember(broker.kafka, topic, topic)
    assert read([consumer], 1) == [b"after"]
    consumer.close()


def test_exactly_once_from_one_topic_to_another(broker, topic):
    """Each record is moved exactly once, although two of five transactions do not commit."""
    target = create_topic(broker.kafka, next(NAMES))
    source = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for number in range(30):
        source.produce(topic, b"%d" % number)
    assert source.flush(PATIENCE_S) == 0
    for outcome in ("commit", "abort", "crash", "commit", "commit"):
        move(broker.kafka, topic, target, outcome)
    moved = read_all(broker.kafka, target, 30)
    assert moved == [b"%d!" % number for number in range(30)]


def move(address, topic, target, outcome):
    """Move ten records in one transaction that is committed, aborted or left open (crash)."""
    producer = ConfluentTransactions(address, f"mover-{topic}").producer
    member = ConfluentMember(address, topic, f"g-{topic}", **{"isolation.level": "read_committed"})
    consumer = member.consumer
    messages = assigned(member)
    messages += consumer.consume(10 - len(messages), timeout=PATIENCE_S)
    assert len(messages) == 10
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, message.value() + b"!")
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_S)
    if outcome == "commit":
        producer.commit_transaction(PATIENCE_S)
    elif outcome == "abort":
        producer.abort_transaction(PATIENCE_S)
    else:
        assert producer.flush(PATIENCE_S) == 0  # all is stored, but not committed
    member.close()


def assigned(member):
    """Poll until the member has its partition; return the records that these polls deliver."""
    messages = []
    while not member.partitions():
        message = member.consumer.poll(0)
        messages += [message] if message is not None else []
    return messages


def committed_offset(address, group, topic):
    reader = kafka.KafkaConsumer(bootstrap_servers=address, group_id=group)
    try:
        return reader.committed(kafka.TopicPartition(topic, 0))
    finally:
        reader.close()


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_python_moves_offsets_with_its_transaction(broker, topic, commit):
    """Offsets sent with a transaction by a non-member are stored only if it commits."""
    writer = KafkaPythonTransactions(broker.kafka, f"tx-{topic}")
    try:
        writer.producer.begin_transaction()
        at = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(7, "", -1)}
        writer.producer.send_offsets_to_transaction(at, f"g-{topic}")
        if commit:
            writer.producer.commit_transaction()
        else:
            writer.producer.abort_transaction()
    finally:
        writer.close()
    assert committed_offset(broker.kafka, f"g-{topic}", topic) == (7 if commit else None)


@pytest.mark.parametrize("commit", [True, False])
def test_aiokafka_moves_offsets_with_its_transaction(broker, topic, commit):
    """The oldest versions of these APIs also store a transaction's offsets only if it commits."""
    writer = AioKafkaTransactions(broker.kafka, f"tx-{topic}")

    async def move_offsets():
        await writer.producer.begin_transaction()
        at = {aiokafka.TopicPartition(topic, 0): aiokafka.structs.OffsetAndMetadata(7, "")}
        await writer.producer.send_offsets_to_transaction(at, f"g-{topic}")
        if commit:
            await writer.producer.commit_transaction()
        else:
            await writer.producer.abort_transaction()

    try:
        writer.runner.run(move_offsets())
    finally:
        writer.close()
    assert committed_offset(broker.kafka, f"g-{topic}", topic) == (7 if commit else None)


def test_transactions_survive_a_restart_of_the_broker(tmp_path):
    """After a restart commits and aborts still hold, and the producer continues."""
    with Broker(tmp_path, **SETTINGS) as old:
        address = old.kafka
        create_topic(address, "t")
        writer = ConfluentTransactions(address, "tx")
        writer.write("t", [b"a"], commit=True)
        writer.write("t", [b"x"], commit=False)
    with Broker(tmp_path, **{**SETTINGS, "kafka": address}):
        writer.write("t", [b"b"], commit=True)
        assert read_all(address, "t", 2) == [b"a", b"b"]


def test_kafka_python_describes_transactions_and_producers(broker, topic):
    """DescribeTransactions, ListTransactions and DescribeProducers show an open transaction."""
    producer = ConfluentTransactions(broker.kafka, f"tx-{topic}").producer
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(PATIENCE_S) == 0
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        described = client.describe_transactions([f"tx-{topic}"])[f"tx-{topic}"]
        assert described.state.value == "Ongoing"
        assert described.topic_partitions == {kafka.TopicPartition(topic, 0)}
        (listed,) = client.list_transactions().values()
        assert f"tx-{topic}" in {each.transactional_id for each in listed}
        (found,) = client.describe_producers([kafka.TopicPartition(topic, 0)]).values()
        (active,) = found.active_producers
        assert active.producer_id == described.producer_id
        assert active.current_transaction_start_offset == 0
    finally:
        client.close()
    producer.abort_transaction(PATIENCE_S)


def test_members_of_a_group_share_what_transactions_wrote(broker):
    """A group member reads only committed records; transaction markers are never delivered."""
    topic = create_topic(broker.kafka, next(NAMES), 2)
    writer = ConfluentTransactions(broker.kafka, f"tx-{topic}")
    for number in range(5):
        writer.write(topic, [b"%d" % number], commit=number % 2 == 0)
    member = ConfluentMember(broker.kafka, topic, topic)
    values = read([member], 3)
    assert sorted(values) == [b"0", b"2", b"4"]
    settle([member], shared(2))
    member.close()
