"""Requests of KIP-848 consumer groups, through the codec, on a real store."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from cordwood.broker.kafka.topic_patterns import TopicPatterns
from cordwood.codes import Code
from cordwood.config import BrokerConfig, changed, load_broker_config
from cordwood.decide.groups.messages import GroupSettings
from cordwood.decide.re2 import PatternError
from cordwood.errors import ConfigError
from cordwood.protocol.kafka.messages.commits import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from cordwood.protocol.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicIdPartitions,
)
from cordwood.protocol.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from support.kafka_services import KafkaServices


def heartbeat(member="m", epoch=0, *, topics=("t",), **fields):
    """Return a heartbeat; a join says all it has to."""
    if epoch == 0:
        fields = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": topics,
            "topic_partitions": (),
            **fields,
        }
    return ConsumerGroupHeartbeatRequest("g", member, epoch, **fields)


def topic_id(services, name="t"):
    return UUID(services.topics.get(name).id)


def told(reply):
    """Return the assigned partitions by topic id."""
    return {each.topic_id: list(each.partitions) for each in reply.assignment.topic_partitions}


async def test_a_member_joins_reads_its_assignment_and_is_described(tmp_path):
    """The reply names topics by id, the description by id and name."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 3)
        joined = await services.ask(heartbeat(rack_id="r1"))
        assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
        assert joined.heartbeat_interval_ms == 5_000
        assert told(joined) == {topic_id(services): [0, 1, 2]}
        asked = ConsumerGroupDescribeRequest(["g", "nobody"], include_authorized_operations=True)
        group, absent = (await services.ask(asked)).groups
        assert (group.group_state, group.group_epoch, group.assignor_name) == (
            "Stable",
            1,
            "uniform",
        )
        assert group.authorized_operations > 0
        (member,) = group.members
        assert (member.client_id, member.client_host, member.rack_id, member.member_type) == (
            "tester",
            "/192.0.2.7",
            "r1",
            1,
        )
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, list(assigned.partitions)) == ("t", [0, 1, 2])
        assert member.target_assignment == member.assignment
        assert absent.error_code == Code.GROUP_ID_NOT_FOUND
        assert absent.error_message == "Group nobody not found."


async def test_a_consumer_group_is_not_a_classic_one(tmp_path):
    """Classic DescribeGroups shows it as Dead, as Kafka does, and ListGroups tells its type."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.ask(heartbeat())
        (classic,) = (await services.ask(DescribeGroupsRequest(["g"]))).groups
        assert (classic.state, classic.error_code) == ("Dead", Code.GROUP_ID_NOT_FOUND)
        assert classic.error_message == "Group g is not a classic group."
        (listed,) = (await services.ask(ListGroupsRequest(types_filter=["consumer"]))).groups
        assert (listed.group_id, listed.state) == ("g", "Stable")
        refused = await services.ask(DeleteGroupsRequest(["g"]))
        assert refused.results[0].error_code == Code.NON_EMPTY_GROUP


async def test_members_survive_a_restart_of_the_broker(tmp_path):
    """A member goes on at its epoch; the state is read back from the disk."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 4)
        await services.ask(heartbeat("m", subscribed_topic_regex="t.*", topics=()))
        await services.ask(heartbeat("n", instance_id="i"))
        before = (await services.ask(ConsumerGroupDescribeRequest(["g"]))).groups
    async with KafkaServices(tmp_path) as services:
        assert (await services.ask(ConsumerGroupDescribeRequest(["g"]))).groups == before
        answer = await services.ask(heartbeat("m", 1))
        assert (answer.error_code, answer.member_epoch) == (0, 1)
        assert len(told(answer)[topic_id(services)]) == 2  # it was to revoke two
        for member in ("m", "n"):
            await services.ask(heartbeat(member, -1, instance_id="i" if member == "n" else None))
        deleted = await services.ask(DeleteGroupsRequest(["g"]))
        assert deleted.results[0].error_code == 0
    async with KafkaServices(tmp_path) as services:
        assert (await services.ask(ListGroupsRequest())).groups == ()


async def test_a_commit_is_checked_against_the_member_epoch(tmp_path):
    """Versions 9 and 10 refuse a stale epoch; 10 names topics by id."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.ask(heartbeat())
        parts = [OffsetCommitPartition(0, 7)]
        by_name = [OffsetCommitTopic("t", partitions=parts)]
        by_id = [
            OffsetCommitTopic(topic_id=topic_id(services), partitions=parts),
            OffsetCommitTopic(topic_id=UUID(int=9), partitions=parts),
        ]
        stale = await services.ask(OffsetCommitRequest("g", 9, "m", topics=by_name), 9)
        assert stale.topics[0].partitions[0].error_code == Code.STALE_MEMBER_EPOCH
        known, unknown = (
            await services.ask(OffsetCommitRequest("g", 1, "m", topics=by_id), 10)
        ).topics
        assert (known.topic_id, known.partitions[0].error_code) == (topic_id(services), 0)
        assert unknown.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID


async def test_offsets_are_fetched_by_id_and_only_at_the_member_epoch(tmp_path):
    """Version 10 answers with ids, an unknown one with an error, and null topics with all."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.ask(heartbeat())
        topics = [OffsetCommitTopic("t", partitions=[OffsetCommitPartition(0, 7)])]
        await services.ask(OffsetCommitRequest("g", 1, "m", topics=topics), 9)
        wanted = [
            OffsetFetchGroupTopic(topic_id=topic_id(services), partitions=[0]),
            OffsetFetchGroupTopic(topic_id=UUID(int=9), partitions=[0]),
        ]

        async def fetch(member, epoch, topics):
            group = OffsetFetchGroup("g", member, epoch, topics)
            return (await services.ask(OffsetFetchRequest(groups=[group]), 10)).groups[0]

        found = await fetch("m", 1, wanted)
        assert [
            (each.topic_id, each.partitions[0].offset, each.partitions[0].error_code)
            for each in found.topics
        ] == [(topic_id(services), 7, 0), (UUID(int=9), -1, Code.UNKNOWN_TOPIC_ID)]
        everything = await fetch(None, -1, None)
        assert [each.topic_id for each in everything.topics] == [topic_id(services)]
        assert (await fetch("m", 2, wanted)).error_code == Code.STALE_MEMBER_EPOCH
        assert (await fetch("x", 1, wanted)).error_code == Code.UNKNOWN_MEMBER_ID


async def test_a_regular_expression_is_resolved_and_follows_new_topics(tmp_path):
    """Matching topics are assigned; one created later comes with a later heartbeat."""
    async with KafkaServices(tmp_path) as services:
        await services.create("logs-a")
        await services.create("other")
        joined = await services.ask(heartbeat(topics=(), subscribed_topic_regex="logs-.*"))
        assert told(joined) == {topic_id(services, "logs-a"): [0]}
        await services.create("logs-b")
        later = await services.ask(heartbeat(epoch=joined.member_epoch))
        assert set(told(later)) == {topic_id(services, name) for name in ("logs-a", "logs-b")}
        await services.topics.delete("logs-a")
        gone = await services.ask(heartbeat(epoch=later.member_epoch))
        assert set(told(gone)) == {topic_id(services, "logs-b")}


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=x)"])
async def test_a_bad_regular_expression_is_refused(tmp_path, pattern):
    """The error says what is wrong and where; the member does not join."""
    async with KafkaServices(tmp_path) as services:
        refused = await services.ask(heartbeat(topics=(), subscribed_topic_regex=pattern))
        assert refused.error_code == Code.INVALID_REGULAR_EXPRESSION
        assert repr(pattern) in refused.error_message
        assert (await services.ask(ListGroupsRequest())).groups == ()


async def test_a_costly_regular_expression_is_refused(tmp_path):
    """The steps of matching are limited over all topics."""
    async with KafkaServices(tmp_path) as services:
        await asyncio.gather(*(services.create(f"{uuid4()}-{'a' * 150}") for _ in range(40)))
        patterns = TopicPatterns(services.topics, steps_max=20_000)
        assert await patterns.matches("[0-9a-f-]+a") == set(services.topics.all())
        with pytest.raises(PatternError, match="too costly"):
            await patterns.matches(".*[0-9a].{140}x")


async def test_an_owned_partition_is_acknowledged_by_topic_id(tmp_path):
    """The partitions that a member lists are compared with what it has to revoke."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        await services.ask(heartbeat("m"))
        await services.ask(heartbeat("n"))
        kept = await services.ask(heartbeat("m", 1))
        owned = [TopicIdPartitions(*item) for item in told(kept).items()]
        reached = await services.ask(heartbeat("m", 1, topic_partitions=owned))
        assert (kept.member_epoch, reached.member_epoch) == (1, 2)
        got = await services.ask(heartbeat("n", 2))
        assert len(told(got)[topic_id(services)]) == 1


def test_the_settings_have_kafkas_names_and_bounds():
    """The broker's settings become those of the groups; a value outside its bounds is refused."""
    given = {
        "group.consumer.session.timeout.ms": 50_000,
        "group.consumer.heartbeat.interval.ms": 6_000,
        "group.consumer.max.size": 3,
        "group.consumer.assignors": "range,uniform",
        "group.consumer.migration.policy": "upgrade",
    }
    settings = GroupSettings.from_config(changed(BrokerConfig(), given))
    assert settings.consumer_session_timeout_ms == 50_000
    assert settings.consumer_heartbeat_interval_ms == 6_000
    assert (settings.consumer_members_max, settings.migration_policy) == (3, "upgrade")
    assert settings.consumer_assignors == ("range", "uniform")
    for name, value in [
        ("group.consumer.session.timeout.ms", 10),
        ("group.consumer.heartbeat.interval.ms", 60_000),
        ("group.consumer.assignors", "random"),
        ("group.consumer.assignors", "range,range"),
        ("group.consumer.migration.policy", "sideways"),
    ]:
        with pytest.raises(ConfigError, match=name):
            load_broker_config({name: value}, {}, None)
    lower = {"session.timeout.ms": 10, "min.session.timeout.ms": 5}
    given = {f"group.consumer.{name}": value for name, value in lower.items()}
    assert load_broker_config(given, {}, None).group_consumer_session_timeout_ms == 10
