"""Groups that change between the classic protocol and KIP-848 while they have members."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.decide.groups.messages import GroupSettings, GroupType, MigrationPolicy
from cordwood.decide.groups.subscription import (
    encode_assignment,
    parse_assignment,
    parse_whole_subscription,
)
from cordwood.decide.instructions import Tick
from cordwood.model import TopicPartition
from support.coordination import (
    REBALANCE_MS,
    SESSION_MS,
    GroupHarness,
    TopicsByName,
    subscription,
)
from support.group_clients import NewConsumer, whole_subscription

CONSUMER_SESSION_MS = GroupSettings().consumer_session_timeout_ms
OWNED = frozenset({TopicPartition("t", 0), TopicPartition("u", 3)})


@pytest.fixture
def service():
    return GroupHarness(topics=TopicsByName(t=4))


def classic_member(service, *, assignment=(("t", 0), ("t", 1)), instance_id=None):
    """Let one classic member form a generation of its own."""
    metadata = whole_subscription(["t"], [])
    how = {"protocols": (("range", metadata),), "instance_id": instance_id}
    member, token = service.enter(**how) if instance_id is None else (None, service.join(**how))
    answer = service.answers[token]
    member = member or answer.member_id
    share = encode_assignment([TopicPartition(*each) for each in assignment], 1)
    service.sync(member, answer.generation, {member: share})
    return member, answer.generation


def test_a_classic_group_becomes_a_consumer_group_and_its_members_keep_their_partitions(service):
    """The classic member goes on with its generation and is told to join again."""
    old, generation = classic_member(service, assignment=[("t", n) for n in range(4)])
    new = NewConsumer(service, "new")
    assert new.beat().assignment == frozenset()
    group = service.groups.describe_consumer("g")
    by_id = {each.member_id: each for each in group.members}
    assert by_id[old].is_classic
    assert by_id[old].assigned == service.topics.all_of("t")
    assert service.beat(old, generation) is Code.REBALANCE_IN_PROGRESS
    assert service.commit(old, generation, version=2) is Code.NONE  # before it gives them up
    assert service.commit(old, generation + 1, version=2) is Code.ILLEGAL_GENERATION
    owned = frozenset(TopicPartition("t", n) for n in range(4))
    protocols = (("range", whole_subscription(["t"], owned)),)
    answer = service.answers[service.join(old, protocols=protocols)]
    assert (answer.code, answer.generation, answer.leader) == (Code.NONE, generation, "")
    kept = service.answers[service.sync(old, generation, protocol="range")]
    kept = parse_assignment(kept.assignment)
    assert len(kept) == 2
    assert service.beat(old, generation) is Code.REBALANCE_IN_PROGRESS  # now it has revoked
    protocols = (("range", whole_subscription(["t"], kept)),)
    answer = service.answers[service.join(old, protocols=protocols)]
    assert answer.generation == group.epoch
    service.sync(old, answer.generation)
    assert service.beat(old, answer.generation) is Code.NONE
    assert len(new.beat().assignment) == 2
    assert service.state == "Stable"


def test_a_consumer_group_with_only_classic_members_becomes_classic(service):
    """When the last member of the new protocol leaves, the others are rebalanced among them."""
    old, _ = classic_member(service)
    new = NewConsumer(service, "new")
    new.beat()
    epoch = service.groups.describe_consumer("g").epoch
    new.leave()
    group = service.groups.describe("g")
    assert (group.group_type, group.state) == (GroupType.CLASSIC, "PreparingRebalance")
    assert (group.generation, service.members()) == (epoch, [old])
    assert service.stored_group is None
    answer = service.answers[service.join(old, protocols=(("range", subscription("t")),))]
    assert (answer.generation, answer.leader) == (epoch + 1, old)


@pytest.mark.parametrize("policy", MigrationPolicy)
def test_the_policy_allows_or_refuses_a_migration(policy):
    """A refused upgrade is GROUP_ID_NOT_FOUND; a refused downgrade keeps the group's type."""
    settings = GroupSettings(initial_rebalance_delay_ms=0, migration_policy=policy)
    service = GroupHarness(settings, topics=TopicsByName(t=2))
    classic_member(service)
    code = service.consumer_beat("new", 0).code
    if policy not in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}:
        assert code is Code.GROUP_ID_NOT_FOUND
        assert service.groups.describe("g").group_type is GroupType.CLASSIC
        return
    assert code is Code.NONE
    service.consumer_beat("new", -1)
    stays = policy is MigrationPolicy.UPGRADE
    expected = GroupType.CONSUMER if stays else GroupType.CLASSIC
    assert service.groups.describe("g").group_type is expected


@pytest.mark.parametrize("how", [{"protocol_type": "connect"}, {"protocols": (("range", b"?"),)}])
def test_a_group_that_is_not_of_consumers_stays_classic(service, how):
    """Connect's groups, and subscriptions that are not Kafka's, cannot be read by the broker."""
    member, token = service.enter(**how)
    service.sync(member, service.answers[token].generation, {member: b""})
    assert service.consumer_beat("new", 0).code is Code.GROUP_ID_NOT_FOUND
    assert service.consumer_beat("new", 3).code is Code.UNKNOWN_MEMBER_ID


def test_parked_requests_are_answered_when_the_group_migrates(service):
    """A join that waits for others is told to join again."""
    old, generation = classic_member(service)
    _, token = service.enter()  # waits for the first member
    service.consumer_beat("new", 0)
    assert service.answers[token].code is Code.REBALANCE_IN_PROGRESS
    assert not service.waiting
    assert service.beat(old, generation) is Code.REBALANCE_IN_PROGRESS


def test_a_classic_static_member_migrates_with_its_instance_id(service):
    """The new process takes the place of the classic one, and the other way round."""
    classic_member(service, instance_id="i")
    new = NewConsumer(service, "new", instance_id="i")
    assert not new.beat().code
    assert service.members() == ["new"]
    answer = service.answers[service.join(instance_id="i")]
    assert answer.code is Code.NONE
    assert service.groups.describe("g").group_type is GroupType.CLASSIC


def test_a_classic_member_of_a_consumer_group_is_removed_when_it_stops(service):
    """Its session, and the time to join again and to sync, have ends."""
    new = NewConsumer(service, "new")
    new.beat()
    _, token = service.enter()
    assert service.answers[token].code is Code.NONE
    service.advance(SESSION_MS)
    assert service.members() == ["new"]
    service.enter(session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    service.advance(5_000)  # it never syncs
    assert service.members() == ["new"]


def test_classic_requests_of_members_that_are_not_are_refused(service):
    """Unknown members, members of the new protocol, other types and other generations."""
    service.consumer_beat("new", 0)
    assert service.beat("new", 1) is Code.UNKNOWN_MEMBER_ID
    assert service.beat("nobody", 1) is Code.UNKNOWN_MEMBER_ID
    assert service.leave(("new", None))[0] is Code.UNKNOWN_MEMBER_ID
    refused = service.join("x", protocol_type="connect")
    assert service.answers[refused].code is Code.INCONSISTENT_GROUP_PROTOCOL
    refused = service.join("x", session_timeout_ms=1)
    assert service.answers[refused].code is Code.INVALID_SESSION_TIMEOUT
    old, token = service.enter()
    generation = service.answers[token].generation
    assert service.beat(old, generation + 1) is Code.ILLEGAL_GENERATION
    refused = service.sync(old, generation, protocol="roundrobin")
    assert service.answers[refused].code is Code.INCONSISTENT_GROUP_PROTOCOL
    refused = service.join(protocols=(("sticky", subscription("t")),))
    assert service.answers[refused].code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert service.leave((old, None))[0] is Code.NONE


def test_an_empty_group_takes_the_type_of_its_next_member(service):
    """Whatever the policy, as nobody is there to be disturbed; cursors stay."""
    service.consumer_beat("m", 0)
    service.commit("m", 1, version=9)
    service.consumer_beat("m", -1)
    service.enter()
    assert service.groups.describe("g").group_type is GroupType.CLASSIC
    assert service.stored_group is None
    assert service.cursors
    service.send(Tick())


# --- the embedded protocol ------------------------------------------------------------------


def test_an_assignment_is_what_it_was_before_encoding():
    """Classic members read what the broker encodes."""
    assert parse_assignment(encode_assignment(OWNED, 1)) == OWNED
    assert parse_assignment(b"") == frozenset()
    assert parse_assignment(b"\0\0\0") is None


def test_a_whole_subscription_has_what_its_member_owns():
    """Version 1 adds the owned partitions; bytes that are none are not a subscription."""
    found = parse_whole_subscription(whole_subscription(["t", "u"], OWNED))
    assert (found.topics, found.owned) == ({"t", "u"}, OWNED)
    assert parse_whole_subscription(subscription("t")).owned == frozenset()
    assert parse_whole_subscription(b"\0\1") is None
    assert REBALANCE_MS > SESSION_MS
