"""Consumer groups with real clients: rebalances, lost members and durable commits."""

from __future__ import annotations

import itertools
import threading

import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, create_topic, kcat
from support.kafka_consumers import (
    MEMBERS,
    SETTINGS,
    Child,
    ConfluentMember,
    fill,
    numbers,
    read,
    settle,
    shared,
)

NAMES = map("topic-{}".format, itertools.count())
by_member = pytest.mark.parametrize("member_of", MEMBERS, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def broker():
    """One broker for all tests of this module; each test uses its own topic and groups."""
    with Broker(**SETTINGS) as running:
        yield running


@pytest.fixture
def topic(broker):
    """A new topic of six partitions."""
    return create_topic(broker.kafka, next(NAMES), 6)


@by_member
def test_what_was_committed_is_not_read_again(broker, topic, members, member_of):
    """A new member of a group continues at the offset its predecessor committed."""
    fill(broker.kafka, topic, 60)
    group = f"g-{topic}"
    first = member_of(broker.kafka, topic, group)
    assert numbers(read([first], 60)) == list(range(60))
    first.commit()
    first.close()
    fill(broker.kafka, topic, 12, first=60)
    members.append(second := member_of(broker.kafka, topic, group))
    assert numbers(read([second], 12)) == list(range(60, 72))


@by_member
def test_two_members_of_a_library_share_the_partitions(broker, topic, members, member_of):
    """Each partition has one member; when a member leaves, the other gets all partitions."""
    group = f"g-{topic}"
    members.append(first := member_of(broker.kafka, topic, group))
    settle([first], shared(6))
    second = joined_beside(first, lambda: member_of(broker.kafka, topic, group))
    settle([first, second], shared(6))
    second.close()
    settle([first], shared(6))


def joined_beside(first, make):
    """Create a second member while polling the first, as some constructors join the group."""
    made = []
    joining = threading.Thread(target=lambda: made.append(make()))
    joining.start()
    while joining.is_alive():
        first.poll()
    return made[0]


def test_a_group_of_three_goes_on_when_one_is_killed(broker, operator, topic, members):
    """After a killed member's session expires, the other two read its partitions."""
    group = f"g-{topic}"
    child = Child(broker.kafka, topic, group)
    try:
        members += [ConfluentMember(broker.kafka, topic, group) for _ in range(2)]
        settle(members, lambda sets: all(len(each) == 2 for each in sets))
        lost = set(range(6)) - members[0].partitions() - members[1].partitions()
        fill(broker.kafka, topic, 60)
        ours = [number for number in range(60) if number % 6 not in lost]
        assert numbers(read(members, 40)) == ours
        for member in members:
            member.commit()
    finally:
        child.kill()
    theirs = [number for number in range(60) if number % 6 in lost]
    assert numbers(read(members, 20)) == theirs
    settle(members, shared(6))
    described = operator.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.state == ConsumerGroupState.STABLE
    assert len(described.members) == 2


def test_a_commit_survives_a_restart_of_the_broker(tmp_path, members):
    """After a restart the group is Empty and a new member continues at the committed offsets."""
    running = Broker(tmp_path, **SETTINGS)
    with running:
        create_topic(running.kafka, "t", 2)
        fill(running.kafka, "t", 10, partitions=2)
        first = ConfluentMember(running.kafka, "t")
        read([first], 10)
        first.commit()
        first.close()
    with running:
        operator = AdminClient({"bootstrap.servers": running.kafka})
        (found,) = operator.list_consumer_groups().result(PATIENCE_S).valid
        assert (found.group_id, found.state) == ("g", ConsumerGroupState.EMPTY)
        fill(running.kafka, "t", 2, partitions=2, first=10)
        second = ConfluentMember(running.kafka, "t")
        assert numbers(read([second], 2)) == [10, 11]
        second.close()


def test_members_carry_on_when_the_broker_is_replaced(tmp_path):
    """Members reconnect to a new broker at the same address, rejoin and read new records."""
    with Broker(tmp_path, **SETTINGS) as old:
        address = old.kafka
        create_topic(address, "t", 2)
        member = ConfluentMember(address, "t", **{"reconnect.backoff.max.ms": 200})
        settle([member], shared(2))
    with Broker(tmp_path, **{**SETTINGS, "kafka": address}) as new:
        fill(new.kafka, "t", 4, partitions=2)
        found = []
        while len(found) < 4:
            found += [m.value() for m in member.consumer.consume(10, 0.2) if not m.error()]
        assert numbers(found) == [0, 1, 2, 3]
        member.close()


@pytest.mark.parametrize("member_of", MEMBERS[:2], ids=lambda each: each.name)
def test_a_static_member_comes_back_to_its_partitions(broker, topic, members, member_of):
    """A static member that returns within its session keeps its partitions.

    The group does not rebalance: its generation is unchanged.
    """
    group = f"g-{topic}"
    members.append(first := member_of(broker.kafka, topic, group, instance="one"))
    settle([first], shared(6))
    second = joined_beside(first, lambda: member_of(broker.kafka, topic, group, instance="two"))
    settle([first, second], shared(6))
    before, had = generation(broker, group), second.partitions()
    second.close()  # a static member sends no LeaveGroup
    members.append(again := member_of(broker.kafka, topic, group, instance="two"))
    settle([first, again], shared(6))
    assert again.partitions() == had
    assert generation(broker, group) == before


def generation(broker, group):
    """Return the group's generation, read from the broker's internal state."""
    groups = broker.service.broker._coordinators.groups.groups
    return groups.describe(group).generation


def test_an_instance_that_starts_twice_fences_the_first(broker, topic, members):
    """The older of two members with one group.instance.id gets a fatal fenced error."""
    group = f"g-{topic}"
    first = ConfluentMember(broker.kafka, topic, group, instance="one")
    settle([first], shared(6))
    members.append(second := ConfluentMember(broker.kafka, topic, group, instance="one"))
    settle([second], shared(6))
    while (report := first.consumer.poll(PATIENCE_S)) is None:
        pass
    assert report.error().code() == confluent_kafka.KafkaError._FATAL
    assert "fenced" in report.error().str()
    first.close()


# --- administration -------------------------------------------------------------------------


def test_lag_is_end_minus_commit(broker, operator, topic, members):
    """Lag computed from OffsetFetch and ListOffsets is end offset minus committed offset."""
    fill(broker.kafka, topic, 60)
    group = f"g-{topic}"
    members.append(member := ConfluentMember(broker.kafka, topic, group))
    read([member], 60)
    member.commit()
    fill(broker.kafka, topic, 6)
    asked = ConsumerGroupTopicPartitions(group)
    committed = operator.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    at = {each.partition: each.offset for each in committed.topic_partitions}
    specs = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(6)}
    ends = operator.list_offsets(specs)
    lags = [ends[tp].result(PATIENCE_S).offset - at[tp.partition] for tp in specs]
    assert lags == [1] * 6


def test_an_operator_resets_and_deletes_a_group(broker, operator, topic, members):
    """Offsets are reset and groups deleted only while the group has no members."""
    fill(broker.kafka, topic, 60)
    group = f"g-{topic}"
    member = ConfluentMember(broker.kafka, topic, group)
    read([member], 60)
    member.commit()
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    (refused,) = (
        operator.alter_consumer_group_offsets([back])[group].result(PATIENCE_S).topic_partitions
    )
    assert refused.error.code() == confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        operator.delete_consumer_groups([group])[group].result(PATIENCE_S)
    member.close()
    operator.alter_consumer_group_offsets([back])[group].result(PATIENCE_S)
    again = ConfluentMember(broker.kafka, topic, group)
    assert numbers(read([again], 6)) == [24, 30, 36, 42, 48, 54]
    again.close()
    operator.delete_consumer_groups([group])[group].result(PATIENCE_S)
    listed = operator.list_consumer_groups().result(PATIENCE_S).valid
    assert group not in {each.group_id for each in listed}
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        operator.delete_consumer_groups([group])[group].result(PATIENCE_S)


def test_kafka_python_sees_and_deletes_groups(broker, topic):
    """The kafka-python client lists, describes and deletes groups with its newest API versions."""
    fill(broker.kafka, topic, 6)
    group = f"g-{topic}"
    member = ConfluentMember(broker.kafka, topic, group)
    read([member], 6)
    member.commit()
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka)
    try:
        listed = {str(each["group_id"]) for each in client.list_groups()}
        assert group in listed
        (described,) = client.describe_groups([group]).values()
        assert described["group_state"] == "Stable"
        member.close()
        (offsets,) = client.list_group_offsets([group]).values()
        assert {tp.partition: at.offset for tp, at in offsets.items()} == dict.fromkeys(range(6), 1)
        client.delete_groups([group])
        assert group not in {str(each["group_id"]) for each in client.list_groups()}
    finally:
        client.close()


@pytest.mark.needs("kcat")
def test_kcat_balances_as_a_member(broker, topic):
    """The old librdkafka in kcat joins a group, reads each partition to its end and leaves."""
    fill(broker.kafka, topic, 60)
    printed = kcat("-b", broker.kafka, "-G", f"g-{topic}", topic, "-e", "-q",
                   "-X", "auto.offset.reset=earliest")  # fmt: skip
    assert numbers(printed.split()) == list(range(60))


def test_a_group_holds_reclaim_back_on_a_consume_topic(broker, members):
    """On a consume topic a committed group is listed as a reader with its seq and lag."""
    topic = create_topic(broker.kafka, next(NAMES), 1, cleanup_policy="consume")
    fill(broker.kafka, topic, 10, partitions=1)
    group = f"g-{topic}"
    members.append(member := ConfluentMember(broker.kafka, topic, group))
    read([member], 10)
    member.commit()
    rows = broker.service.broker.readers.rows(topic)
    assert [(row.reader, row.seq, row.lag) for row in rows] == [(group, 10, 0)]
