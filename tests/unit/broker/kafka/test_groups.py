"""Consumer groups over the Kafka protocol: joins, heartbeats, leaves, and deletion."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.broker.session import Session
from cordwood.codes import Code
from cordwood.errors import UnavailableError
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.protocol.kafka.messages.commits import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from cordwood.protocol.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from support.clock import ManualClock
from support.coordination import subscription
from support.kafka_services import SESSION, KafkaServices

PROTOCOLS = [JoinGroupProtocol("range", subscription("t"))]
DAY_MS = 86_400_000


def join(member_id="", group="g", **how):
    how.setdefault("protocols", PROTOCOLS)
    return JoinGroupRequest(
        group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        **how,
    )


def commit(offset=5, group="g", topic="t", **who):
    topics = [OffsetCommitTopic(topic, partitions=[OffsetCommitPartition(0, offset)])]
    return OffsetCommitRequest(group, topics=topics, **who)


async def enter(services, group="g"):
    """Join one member until the group is stable; return its id and generation."""
    known = await services.ask(join(group=group))
    assert known.error_code == Code.MEMBER_ID_REQUIRED
    joined = await services.ask(join(known.member_id, group))
    assignments = [SyncGroupAssignment(joined.member_id, b"all of it")]
    synced = await services.ask(
        SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=assignments)
    )
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
    return joined.member_id, joined.generation_id


async def states(services):
    listed = await services.ask(ListGroupsRequest())
    return {group.group_id: group.state for group in listed.groups}


@pytest.mark.parametrize("version", range(5))
async def test_every_key_is_coordinated_here(tmp_path, version):
    """The reply contains the address the client used, for one key or many."""
    async with KafkaServices(tmp_path) as services:
        request = FindCoordinatorRequest("g", coordinator_keys=["g", "h"])
        found = await services.ask(request, version)
        if version < 4:
            assert (found.error_code, found.node_id) == (0, 1)
            assert (found.host, found.port) == ("broker.example", 9092)
        else:
            assert [each.key for each in found.coordinators] == ["g", "h"]
            assert {each[1:5] for each in found.coordinators} == {(1, "broker.example", 9092, 0)}


async def test_a_kind_of_key_nobody_coordinates_is_refused(tmp_path):
    """Share groups (key type 2) get INVALID_REQUEST in every version of the reply."""
    async with KafkaServices(tmp_path) as services:
        request = FindCoordinatorRequest("g", 2, ["g"])
        assert (await services.ask(request, 3)).error_code == Code.INVALID_REQUEST
        assert (await services.ask(request, 4)).coordinators[0].error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_in_every_version(tmp_path, version):
    """Up to version 3 the first join succeeds; from 4 on the member joins again with its id."""
    async with KafkaServices(tmp_path) as services:
        joined = await services.ask(join(), version)
        if version >= 4:
            assert joined.error_code == Code.MEMBER_ID_REQUIRED
            joined = await services.ask(join(joined.member_id), version)
        assert joined.error_code == Code.NONE
        assert joined.leader == joined.member_id == joined.members[0].member_id
        assert joined.member_id.startswith("tester-")
        assert joined.protocol_name == "range"
        assert joined.members[0].metadata == subscription("t")


async def test_a_refusal_is_encoded_where_the_protocol_cannot_be_null(tmp_path):
    """Before version 7 a JoinGroup reply without a protocol contains an empty name."""
    async with KafkaServices(tmp_path) as services:
        refused = await services.ask(join(protocols=[]), 6)
        assert refused.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert refused.protocol_name == ""


async def test_a_second_member_starts_a_rebalance_and_shares(tmp_path):
    """The first member learns of it by its heartbeat. The leader assigns partitions to both."""
    async with KafkaServices(tmp_path) as services:
        first, generation = await enter(services)
        known = await services.ask(join())
        second = services.begin(join(known.member_id))
        beat = await services.begin(HeartbeatRequest("g", generation, first))  # runs after the join
        assert beat.error_code == Code.REBALANCE_IN_PROGRESS
        leader = await services.ask(join(first))
        follower = await second
        assert leader.generation_id == follower.generation_id == generation + 1
        assert not follower.members
        waiting = services.begin(SyncGroupRequest("g", follower.generation_id, follower.member_id))
        parts = [SyncGroupAssignment(first, b"1"), SyncGroupAssignment(known.member_id, b"2")]
        mine = await services.ask(
            SyncGroupRequest("g", leader.generation_id, first, assignments=parts)
        )
        assert (mine.assignment, (await waiting).assignment) == (b"1", b"2")


async def test_a_member_that_falls_silent_is_taken_out(tmp_path):
    """A member whose session times out is removed by the timer."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        member, generation = await enter(services)
        clock.advance(9_999)
        services.coordinators.groups.timers.look()
        assert await states(services) == {"g": "Stable"}
        clock.advance(10_001)
        services.coordinators.groups.timers.look()
        await services.coordinators.groups.idle()
        assert await states(services) == {"g": "Empty"}
        beat = await services.ask(HeartbeatRequest("g", generation, member))
        assert beat.error_code == Code.UNKNOWN_MEMBER_ID


async def test_timers_run_by_themselves(tmp_path):
    """The first rebalance ends after its delay without another request."""
    async with KafkaServices(tmp_path, group_initial_rebalance_delay_ms=20) as services:
        known = await services.ask(join())
        joined = await asyncio.wait_for(services.ask(join(known.member_id)), 10)
        assert joined.error_code == Code.NONE


@pytest.mark.parametrize("version", [0, 2, 3, 5])
async def test_a_member_leaves_in_every_version(tmp_path, version):
    """One or several members can leave. An unknown member gets its own error code."""
    async with KafkaServices(tmp_path) as services:
        member, _ = await enter(services)
        members = [LeavingMember(member), LeavingMember("stranger")]
        left = await services.ask(LeaveGroupRequest("g", member, members), version)
        assert left.error_code == Code.NONE
        if version >= 3:
            codes = [each.error_code for each in left.members]
            assert codes == [Code.NONE, Code.UNKNOWN_MEMBER_ID]
        again = await services.ask(LeaveGroupRequest("g", member, members[:1]), version)
        code = again.members[0].error_code if version >= 3 else again.error_code
        assert code == Code.UNKNOWN_MEMBER_ID
        assert await states(services) == {"g": "Empty"}


async def test_a_described_group_shows_its_members(tmp_path):
    """Members have client, host, subscription and assignment. A missing group is Dead.

    Since version 6 it is also an error.
    """
    async with KafkaServices(tmp_path) as services:
        member, _ = await enter(services)
        described = await services.ask(DescribeGroupsRequest(["g", "nobody"]))
        group, absent = described.groups
        assert (group.state, group.protocol_type, group.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (one,) = group.members
        assert (one.member_id, one.client_id, one.client_host) == (member, "tester", "/192.0.2.7")
        assert (one.metadata, one.assignment) == (subscription("t"), b"all of it")
        assert (absent.state, absent.error_code) == ("Dead", Code.GROUP_ID_NOT_FOUND)
        assert absent.error_message == "Group nobody not found."
        (absent,) = (await services.ask(DescribeGroupsRequest(["nobody"]), 5)).groups
        assert (absent.state, absent.error_code) == ("Dead", Code.NONE)


async def test_a_client_without_a_name_gets_an_id_too(tmp_path):
    """A client id is optional; the member id then starts with ``member-``."""
    async with KafkaServices(tmp_path) as services:
        session = Session(listener="kafka", peer="192.0.2.7:1", host="h", port=1)
        joined = await services.ask(join(), 3, session)
        assert joined.member_id.startswith("member-")


async def test_groups_come_back_empty(tmp_path):
    """After a restart, groups with members or cursors and line readers are listed as Empty."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await enter(services, "members-only")
        await services.ask(commit(group="cursors-only"))
        await services.write("t", [b"v"])
        await services.readers.register("t", "liner")
        await services.readers.advance(services.store.partitions("t")[0].tp, "liner", 1)
        assert set(await states(services)) == {"members-only", "cursors-only", "liner"}
    async with KafkaServices(tmp_path) as services:
        listed = await services.ask(ListGroupsRequest())
        assert {tuple(group) for group in listed.groups} == {
            ("members-only", "consumer", "Empty", "classic"),
            ("cursors-only", "", "Empty", "classic"),
            ("liner", "", "Empty", "classic"),
        }


async def test_groups_are_listed_by_state(tmp_path):
    """The state filter ignores case. Versions without the filter list all groups."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await enter(services, "busy")
        await services.ask(commit(group="idle"))
        busy = await services.ask(ListGroupsRequest(["stable"]))
        assert [group.group_id for group in busy.groups] == ["busy"]
        assert len((await services.ask(ListGroupsRequest(), 0)).groups) == 2


async def test_groups_are_listed_by_type(tmp_path):
    """The type filter ignores case; every group of the classic protocol has the type classic."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await enter(services, "busy")
        for types, names in (((), ["busy"]), (("Classic", "x"), ["busy"]), (("share",), [])):
            listed = await services.ask(ListGroupsRequest(types_filter=types))
            assert [group.group_id for group in listed.groups] == names


async def test_a_deleted_group_takes_cursors_and_registrations_along(tmp_path):
    """A group with members is not deleted. A missing group gets its own error code."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="consume")
        await services.ask(commit(group="gone"))
        await enter(services, "busy")
        assert "gone" in services.metadata.readers.registered("t")
        deleted = await services.ask(DeleteGroupsRequest(["gone", "busy", "nobody"]))
        assert [each.error_code for each in deleted.results] == [
            Code.NONE,
            Code.NON_EMPTY_GROUP,
            Code.GROUP_ID_NOT_FOUND,
        ]
        assert not services.metadata.readers.cursors()
        assert not services.metadata.readers.registered("t")
    async with KafkaServices(tmp_path) as services:
        assert await states(services) == {"busy": "Empty"}


async def test_offsets_of_a_group_nobody_uses_expire(tmp_path):
    """Offsets expire seven days after the last commit, unless members or RECLAIM need them."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        await services.create("consumed", cleanup_policy="consume")
        await services.ask(commit(group="idle"))
        await services.ask(commit(group="reader", topic="consumed"))
        member, generation = await enter(services, "busy")
        await services.ask(commit(group="busy", generation_id=generation, member_id=member))
        groups = services.coordinators.groups
        clock.advance(7 * DAY_MS - 1)
        await groups.expire()
        assert set(await states(services)) == {"idle", "reader", "busy"}
        clock.advance(1)
        await groups.expire()
        assert set(await states(services)) == {"reader", "busy"}
        assert {at.reader for at in services.metadata.readers.cursors()} == {"reader", "busy"}


async def test_an_idle_group_without_offsets_leaves_a_line_readers_cursor(tmp_path):
    """A line reader may share the group's name. Expiry of the group keeps its cursor."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        member, _ = await enter(services)
        await services.ask(LeaveGroupRequest("g", members=[LeavingMember(member)]))
        await services.readers.register("t", "g")
        where = ReaderPartition("g", "t", 0)
        await services.readers.commit({where: Cursor(3)})
        clock.advance(600_001)
        services.coordinators.groups.timers.look()
        await services.coordinators.groups.idle()
        assert not services.metadata.readers.groups
        assert services.metadata.readers.cursor(where) == Cursor(3)
        assert "g" in services.metadata.readers.registered("t")


async def test_what_cannot_be_made_durable_is_refused_and_the_group_goes_on(tmp_path, monkeypatch):
    """The failed commit gets a retriable code, and the next commit succeeds."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        member, generation = await enter(services)
        mine = {"generation_id": generation, "member_id": member}

        def broken(_):
            raise UnavailableError("the disk is away")

        with monkeypatch.context() as patched:
            patched.setattr(services.metadata.readers, "commit_cursors", broken)
            refused = await services.ask(commit(**mine))
        assert refused.topics[0].partitions[0].error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert not services.metadata.readers.cursors()
        held = await services.ask(commit(**mine))
        assert held.topics[0].partitions[0].error_code == Code.NONE
        beat = await services.ask(HeartbeatRequest("g", generation, member))
        assert beat.error_code == Code.NONE


async def test_a_failed_save_of_a_group_keeps_its_timers(tmp_path, monkeypatch):
    """The join is refused, and the member still times out."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:

        def broken(*_):
            raise UnavailableError("the disk is away")

        with monkeypatch.context() as patched:
            patched.setattr(services.metadata.readers, "put_group", broken)
            refused = await services.ask(join(), 3)
        assert refused.error_code == Code.COORDINATOR_NOT_AVAILABLE
        clock.advance(400_000)
        services.coordinators.groups.timers.look()
        await services.coordinators.groups.idle()
        assert await states(services) == {"g": "Empty"}


async def test_members_parked_in_a_rebalance_are_sent_away_at_the_end(tmp_path):
    """A stop refuses waiting and later requests with COORDINATOR_NOT_AVAILABLE."""
    async with KafkaServices(tmp_path, group_initial_rebalance_delay_ms=60_000) as services:
        known = await services.ask(join())
        parked = services.begin(join(known.member_id))
        await services.begin(HeartbeatRequest("g", 1, known.member_id))  # runs after the join
        services.coordinators.drain()
        assert (await parked).error_code == Code.COORDINATOR_NOT_AVAILABLE
        late = await services.ask(HeartbeatRequest("g", 1, known.member_id), session=SESSION)
        assert late.error_code == Code.COORDINATOR_NOT_AVAILABLE
