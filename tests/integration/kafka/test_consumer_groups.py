"""KIP-848 consumer groups with librdkafka: sharing, losing members, migration, restarts."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from cordwood.lab.scenarios.stage import Child as BrokerProcess
from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, create_topic
from support.kafka_consumers import (
    SETTINGS,
    Child,
    ConfluentMember,
    ConsumerMember,
    fill,
    numbers,
    read,
    settle,
    shared,
)

NAMES = map("kip848-{}".format, itertools.count())
QUICK = {
    **SETTINGS,
    "group_consumer_min_session_timeout_ms": 500,
    "group_consumer_session_timeout_ms": 3_000,
    "group_consumer_min_heartbeat_interval_ms": 50,
    "group_consumer_heartbeat_interval_ms": 100,
}


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own topic and groups."""
    with Broker(**QUICK) as running:
        yield running


@pytest.fixture
def topic(broker):
    """A new topic of six partitions."""
    return create_topic(broker.kafka, f"{next(NAMES)}-{uuid.uuid4().hex[:6]}", 6)


def describe(operator, group):
    return operator.describe_consumer_groups([group])[group].result(timeout=PATIENCE_S)


def test_members_share_the_partitions_and_leave_them_to_others(broker, topic, members, operator):
    """Two and then three members share; one that leaves gives its partitions to the others."""
    group = f"g-{topic}"
    for count in (1, 2, 3):
        members.append(ConsumerMember(broker.kafka, topic, group))
        settle(members, shared(6))
        assert len(members) == count
    deadline = time.monotonic() + PATIENCE_S
    while (described := describe(operator, group)).state is not ConsumerGroupState.STABLE:
        assert time.monotonic() < deadline, described.state
        assert [member.poll() for member in members] == [[], [], []]  # it acknowledges by polling
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.partition_assignor == "uniform"
    assert sorted(len(m.assignment.topic_partitions) for m in described.members) == [2, 2, 2]
    members.pop().close()
    settle(members, shared(6))
    fill(broker.kafka, topic, 60)
    assert numbers(read(members, 60)) == list(range(60))


def test_what_was_committed_is_not_read_again(broker, topic, members):
    """A new member continues at the offset its predecessor committed, also a classic one."""
    group = f"g-{topic}"
    fill(broker.kafka, topic, 60)
    first = ConsumerMember(broker.kafka, topic, group)
    assert numbers(read([first], 60)) == list(range(60))
    first.commit()
    first.close()
    fill(broker.kafka, topic, 12, first=60)
    members.append(ConfluentMember(broker.kafka, topic, group))
    assert numbers(read(members, 12)) == list(range(60, 72))


def test_a_killed_member_loses_its_partitions_when_its_session_ends(broker, topic, members):
    """The others get them without being asked."""
    group = f"g-{topic}"
    child = Child(broker.kafka, topic, group, ConsumerMember)
    try:
        members.append(ConsumerMember(broker.kafka, topic, group))
        settle(members, lambda sets: len(sets[0]) == 3)
    finally:
        child.kill()
    settle(members, shared(6))


def test_a_static_member_comes_back_to_its_partitions(broker, topic, members):
    """A restart of a static member does not move a partition of the other."""
    group = f"g-{topic}"
    members += [ConsumerMember(broker.kafka, topic, group, instance=name) for name in ("a", "b")]
    settle(members, shared(6))
    before = [member.partitions() for member in members]
    members.pop(0).close()
    members.insert(0, ConsumerMember(broker.kafka, topic, group, instance="a"))
    settle(members, shared(6))
    assert [member.partitions() for member in members] == before


def test_a_regular_expression_finds_new_topics(broker, topic, members):
    """Topics that match are read, also one created afterwards."""
    later = f"{topic}-later"
    fill(broker.kafka, topic, 6)
    members.append(ConsumerMember(broker.kafka, f"^{topic}.*", f"g-{topic}"))
    assert numbers(read(members, 6)) == list(range(6))
    create_topic(broker.kafka, later, 6)
    fill(broker.kafka, later, 6, first=100)
    assert numbers(read(members, 6)) == list(range(100, 106))


def test_a_topic_that_grows_is_read_whole(broker, topic, members, operator):
    """New partitions are assigned with a later heartbeat."""
    members.append(ConsumerMember(broker.kafka, topic, f"g-{topic}"))
    settle(members, shared(6))
    operator.create_partitions([NewPartitions(topic, 9)])[topic].result(timeout=PATIENCE_S)
    settle(members, shared(9))


def test_a_commit_from_outside_a_group_with_members_is_refused(broker, topic, members, operator):
    """An operator cannot move the cursors of a group at work, nor delete it."""
    group = f"g-{topic}"
    members.append(ConsumerMember(broker.kafka, topic, group))
    settle(members, shared(6))
    outsider = confluent_kafka.Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    with pytest.raises(confluent_kafka.KafkaException, match="Unknown member"):
        outsider.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    outsider.close()
    with pytest.raises(confluent_kafka.KafkaException, match="not empty"):
        operator.delete_consumer_groups([group])[group].result(timeout=PATIENCE_S)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_migrates_up_and_down_without_losing_a_record(
    broker, topic, members, operator, strategy
):
    """Classic members are replaced one by one by new ones and back, while records arrive.

    Each member commits what it read, so every number is read; none is skipped.
    """
    group, seen, sent = f"g-{topic}", [], 0
    classic = {"partition.assignment.strategy": strategy}

    def work(wanted):
        nonlocal sent
        deadline = time.monotonic() + 2 * PATIENCE_S
        fill(broker.kafka, topic, 30, first=sent)
        sent += 30
        while not (wanted([m.partitions() for m in members]) and set(seen) >= set(range(sent))):
            assert time.monotonic() < deadline, ([m.partitions() for m in members], len(seen), sent)
            for member in members:
                values = member.poll()
                seen.extend(map(int, values))
                if values:
                    commit(member)

    def commit(member):
        """Commit; during a rebalance that may be refused, and the records are read again."""
        with contextlib.suppress(confluent_kafka.KafkaException):
            member.commit()

    members += [ConfluentMember(broker.kafka, topic, group, **classic) for _ in range(2)]
    work(shared(6))
    assert describe(operator, group).type is ConsumerGroupType.CLASSIC
    for _ in range(2):
        members.append(ConsumerMember(broker.kafka, topic, group))
        work(shared(6))
        assert describe(operator, group).type is ConsumerGroupType.CONSUMER
        members.pop(0).close()
        work(shared(6))
    for _ in range(2):
        members.append(ConfluentMember(broker.kafka, topic, group, **classic))
        work(shared(6))
        members.pop(0).close()
        work(shared(6))
    assert describe(operator, group).type is ConsumerGroupType.CLASSIC
    assert set(seen) == set(range(sent))


def test_members_go_on_after_the_broker_was_killed(tmp_path, members):
    """With kill -9 and a restart at the same address, no member loses a partition."""
    settings = {name.replace("_", "."): str(value) for name, value in QUICK.items()}
    running = BrokerProcess(tmp_path / "data", settings)
    try:
        address = running.addresses["kafka"]
        create_topic(address, "t", 6)
        members += [ConsumerMember(address, "t", "g") for _ in range(2)]
        settle(members, shared(6))
        for member in members:
            member.lost.clear()
        operator = AdminClient({"bootstrap.servers": address})
        before = described_assignments(operator)
        running.kill()
        running = BrokerProcess(tmp_path / "data", {**settings, "kafka": address})
        fill(address, "t", 12)
        assert numbers(read(members, 12)) == list(range(12))
        for member in members:
            member.commit()  # its epoch is still right
        operator = AdminClient({"bootstrap.servers": address})  # the first one may wait long
        assert described_assignments(operator) == before
        assert [member.lost for member in members] == [[], []]
        while members:
            members.pop().close()
    finally:
        running.kill()


def described_assignments(operator):
    """Return the partitions of each member by its id."""
    return {
        member.member_id: {tp.partition for tp in member.assignment.topic_partitions}
        for member in describe(operator, "g").members
    }
