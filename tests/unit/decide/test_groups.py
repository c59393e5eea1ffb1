"""The rules of the classic consumer group protocol; times are in ms from 0."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.groups.directory import GroupDirectory
from cordwood.decide.groups.group import StoredGroup
from cordwood.decide.groups.messages import (
    EraseGroup,
    GroupSettings,
    GroupType,
    Heartbeat,
    Leave,
    Leaver,
    PersistGroup,
    PersistOffsets,
)
from cordwood.decide.groups.subscription import parse_subscription
from cordwood.decide.instructions import Reply, SetTimer, Tick
from cordwood.model import TopicPartition
from support.coordination import (
    QUICK,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    GroupHarness,
    settle,
    subscription,
)

T0 = TopicPartition("t", 0)
STATIC = {"instance_id": "i1"}


@pytest.fixture
def service():
    return GroupHarness()


def test_a_group_of_join_requests_is_a_classic_one(service):
    """A description tells which protocol the members of the group speak."""
    service.stable({})
    assert service.groups.describe("g").group_type is GroupType.CLASSIC


# --- joining --------------------------------------------------------------------------------


def test_a_new_dynamic_member_is_asked_to_come_back_with_an_id(service):
    """From JoinGroup 4 on, a first join returns a member ID and error 79 and adds no member."""
    answer = service.answers[service.join()]
    assert (answer.code, answer.member_id) == (Code.MEMBER_ID_REQUIRED, "m1")
    assert service.members() == []


def test_an_old_client_joins_in_one_round(service):
    """Before JoinGroup 4, the first join makes the client a member."""
    answer = service.answers[service.join(version=3)]
    assert (answer.code, answer.generation, answer.leader) == (Code.NONE, 1, "m1")


def test_only_the_leader_gets_the_members(service):
    """Only the leader receives the list of members."""
    for _ in range(2):
        service.join(version=0)  # the second join interrupts the first generation
    first = service.join("m1")
    lead, follow = service.answers[first], service.answers[2]
    assert [each.member_id for each in lead.members] == ["m1", "m2"]
    assert follow.members == ()
    assert lead.leader == follow.leader == "m1"
    assert lead.generation == follow.generation == 2


def test_a_pending_member_holds_up_the_others_until_its_session_ends(service):
    """A rebalance waits for a member with a new ID, but at most for its session timeout."""
    ids, _ = service.stable({})
    service.join()  # never rejoins
    token = service.join(ids[0])  # the leader rejoins
    assert token not in service.answers
    service.advance(SESSION_MS)
    assert service.answers[token].generation == 2


def test_an_unknown_id_cannot_join(service):
    """A join with an unknown member ID is refused and does not create the group."""
    assert service.answers[service.join("from-before")].code == Code.UNKNOWN_MEMBER_ID
    assert service.groups.describe("g") is None
    service.stable({})
    assert service.answers[service.join("from-before")].code == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_outside_the_bounds_is_refused(service, session_ms):
    """A session timeout outside the broker's limits is refused."""
    token = service.join(session_timeout_ms=session_ms)
    assert service.answers[token].code == Code.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    "how",
    [
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_first_member_must_name_a_type_and_a_protocol(service, how):
    """The first member must name a protocol type and at least one protocol."""
    assert service.answers[service.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    "how",
    [
        {"protocols": (("roundrobin", b""),)},
        {"protocol_type": "connect"},
    ],
)
def test_a_member_nobody_can_agree_with_is_refused(service, how):
    """A member must have the group's protocol type and share a protocol with all members."""
    service.stable({})
    assert service.answers[service.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


def test_members_vote_for_the_protocol_among_those_all_share(service):
    """The protocol with most votes wins, among those that all members support."""
    protocols = {name: (name, name.encode()) for name in ("a", "b", "c")}
    ids, _ = service.stable(
        {"protocols": [protocols["c"], protocols["a"], protocols["b"]]},
        {"protocols": [protocols["b"], protocols["a"]]},
        {"protocols": [protocols["b"], protocols["a"]]},
    )
    description = service.groups.describe("g")
    assert description.protocol == "b"
    assert {each.metadata for each in description.members} == {b"b"}
    assert len(ids) == 3


def test_a_full_group_turns_the_next_one_away():
    """A join to a full group is refused; its members stay."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=0, members_max=2))
    ids, generation = service.stable({}, {})
    assert service.answers[service.join()].code == Code.GROUP_MAX_SIZE_REACHED
    assert service.members() == ids
    assert service.beat(ids[0], generation) == Code.NONE


def test_a_static_member_comes_back_to_a_full_group():
    """A static member can rejoin a full group, because it replaces itself."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=0, members_max=1))
    service.stable(STATIC)
    assert service.answers[service.join(**STATIC)].code == Code.NONE


def test_ids_given_out_are_bounded_too():
    """The number of member IDs that were handed out but not used yet is limited."""
    service = GroupHarness(GroupSettings(members_max=2))
    codes = [service.answers[service.join()].code for _ in range(3)]
    assert codes == [
        Code.MEMBER_ID_REQUIRED,
        Code.MEMBER_ID_REQUIRED,
        Code.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_retried_join_answers_the_one_it_overtakes(service):
    """A repeated join fails the earlier one with REBALANCE_IN_PROGRESS and waits itself."""
    service.stable({})
    member_id, first = service.enter()
    second = service.join(member_id)
    assert service.answers[first].code == Code.REBALANCE_IN_PROGRESS
    assert second not in service.answers


def test_a_follower_that_rejoins_unchanged_gets_the_same_generation(service):
    """A follower that rejoins unchanged gets the current generation without a rebalance."""
    ids, generation = service.stable({}, {})
    answer = service.answers[service.join(ids[1])]
    assert (answer.code, answer.generation, answer.members) == (Code.NONE, generation, ())
    assert service.state == "Stable"


def test_a_member_that_missed_its_join_answer_gets_it_again_before_the_sync(service):
    """Before the sync, an unchanged join gets the same answer again without a rebalance."""
    member_id, _ = service.enter()
    again = service.answers[service.join(member_id)]
    assert (again.generation, len(again.members)) == (1, 1)
    assert service.state == "CompletingRebalance"


def test_a_follower_with_other_topics_starts_a_rebalance(service):
    """A follower that rejoins with other topics starts a rebalance."""
    ids, _ = service.stable({}, {})
    assert service.join(ids[1], protocols=[("range", subscription("u"))]) not in service.answers
    assert service.state == "PreparingRebalance"


def test_a_leader_that_rejoins_starts_a_rebalance(service):
    """A leader that rejoins always starts a rebalance, for example because a topic grew."""
    ids, _ = service.stable({}, {})
    assert service.join(ids[0]) not in service.answers
    assert service.state == "PreparingRebalance"


# --- the first rebalance --------------------------------------------------------------------


def test_the_first_rebalance_waits_for_members_started_together():
    """Members that join within the initial delay share one generation; each join extends it."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    tokens = []
    for _ in range(3):
        tokens.append(service.enter()[1])
        service.advance(60)
    assert not any(token in service.answers for token in tokens)
    service.advance(200)
    assert {service.answers[token].generation for token in tokens} == {1}


def test_the_first_rebalance_ends_although_members_keep_coming():
    """The first rebalance lasts at most the rebalance timeout, even if members keep joining."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    token = service.enter(rebalance_timeout_ms=300)[1]
    for _ in range(6):
        assert service.state == "PreparingRebalance" or token in service.answers
        service.advance(50)
        service.enter(rebalance_timeout_ms=300)
    assert token in service.answers


def test_a_member_that_was_just_given_an_id_prolongs_the_first_rebalance():
    """A member that just received its ID extends the first rebalance."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    token = service.enter()[1]
    service.advance(90)
    late = service.answers[service.join()].member_id
    service.advance(50)
    assert token not in service.answers
    joined = service.join(late)
    service.advance(200)
    assert service.answers[token].generation == service.answers[joined].generation == 1


def test_what_is_read_is_unknown_until_the_first_generation():
    """Before the first generation, subscriptions are unknown and offsets cannot be deleted."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    service.commit()
    service.enter()
    assert service.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)


# --- rebalances -----------------------------------------------------------------------------


def test_heartbeats_tell_of_a_rebalance(service):
    """During a rebalance, a heartbeat returns REBALANCE_IN_PROGRESS, so the member rejoins."""
    ids, generation = service.stable({})
    service.enter()
    assert service.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
    token = service.join(ids[0])
    assert service.answers[token].generation == generation + 1


def test_who_does_not_rejoin_in_time_is_out(service):
    """A member that does not rejoin within the longest rebalance timeout is removed.

    If it was the leader, another member becomes the leader.
    """
    slow = {"rebalance_timeout_ms": 2 * REBALANCE_MS}
    ids, generation = service.stable({}, slow)
    token = service.join(ids[1], protocols=[("range", subscription("u"))], **slow)
    for _ in range(23):
        service.advance(2 * REBALANCE_MS // 24)
        assert service.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
        assert token not in service.answers
    service.advance(2 * REBALANCE_MS // 24)
    assert service.answers[token].leader == ids[1]
    assert service.members() == [ids[1]]
    assert service.beat(ids[0], generation) == Code.UNKNOWN_MEMBER_ID


def test_a_new_rebalance_sends_waiting_syncs_back(service):
    """A new rebalance fails waiting syncs with REBALANCE_IN_PROGRESS."""
    for _ in range(2):
        service.join(version=0)
    service.join("m1")
    waiting = service.sync("m2", 2)
    assert waiting not in service.answers
    service.join(version=0)
    assert service.answers[waiting].code == Code.REBALANCE_IN_PROGRESS


def test_a_member_that_never_syncs_is_out(service):
    """A member that does not sync within the rebalance timeout is removed.

    Heartbeats do not keep it in the group.
    """
    for _ in range(2):
        service.join(version=0)
    service.join("m1")
    synced = service.sync("m1", 2, {"m1": b"all"})
    assert service.answers[synced].assignment == b"all"
    for _ in range(REBALANCE_MS // 6_000):
        for member_id in ("m1", "m2"):
            assert service.beat(member_id, 2) == Code.NONE
        service.advance(6_000)
    assert service.members() == ["m1"]
    assert service.state == "PreparingRebalance"


def test_a_leader_that_never_syncs_is_out_and_its_followers_join_again(service):
    """If the leader never syncs, it is removed, and waiting syncs get REBALANCE_IN_PROGRESS."""
    for _ in range(2):
        service.join(version=0)
    service.join("m1")
    waiting = service.sync("m2", 2)
    service.advance(SESSION_MS)
    assert service.answers[waiting].code == Code.REBALANCE_IN_PROGRESS
    assert service.members() == ["m2"]


def test_the_assignment_goes_to_each_and_nothing_to_who_got_none(service):
    """Each member gets its own assignment, and an empty one if the leader gave it none."""
    ids, generation = service.stable({}, {})
    again = service.answers[service.sync(ids[1], generation)]
    assert again.assignment == ids[1].encode()
    assert (again.protocol_type, again.protocol) == ("consumer", "range")
    token = service.join(ids[0])
    service.join(ids[1])
    assert service.answers[token].generation == generation + 1
    service.sync(ids[1], generation + 1)
    service.sync(ids[0], generation + 1, {})
    assert all(each.assignment == b"" for each in service.groups.describe("g").members)


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ({"protocol": "other"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "range", "protocol_type": "consumer"}, Code.NONE),
    ],
)
def test_a_sync_that_means_another_protocol_is_refused(service, says, code):
    """From SyncGroup 5 on, a sync that names another protocol or type is refused."""
    ids, generation = service.stable({})
    assert service.answers[service.sync(ids[0], generation, **says)].code == code


def test_an_old_generation_or_unknown_member_is_refused(service):
    """Heartbeats and syncs must name a known member and the current generation."""
    ids, generation = service.stable({})
    assert service.beat(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert service.beat("nobody", generation) == Code.UNKNOWN_MEMBER_ID
    assert service.answers[service.sync(ids[0], 9)].code == Code.ILLEGAL_GENERATION
    assert service.answers[service.sync("nobody", 9)].code == Code.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_is_away_passes_the_lead_to_one_who_is_here(service):
    """If a static leader is absent in a rebalance, a present member becomes the leader."""
    short = {"rebalance_timeout_ms": 1_000}
    ids, generation = service.stable({**STATIC, **short}, short)
    token = service.join(ids[1], protocols=[("range", subscription("u"))], **short)
    service.advance(1_000)
    answer = service.answers[token]
    assert (answer.generation, answer.leader) == (generation + 1, ids[1])
    assert [each.member_id for each in answer.members] == ids


def test_a_newcomer_is_not_waited_for_for_ever(service):
    """A new member whose join waits for five minutes is removed."""
    slow = {"rebalance_timeout_ms": 3_600_000}
    ids, generation = service.stable(slow)
    _, token = service.enter(**slow)
    for _ in range(60):
        assert token not in service.answers
        assert service.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
        service.advance(5_000)
    assert service.answers[token].code == Code.UNKNOWN_MEMBER_ID
    assert service.members() == ids


# --- sessions and leaving -------------------------------------------------------------------


def test_a_silent_members_session_ends(service):
    """A member without heartbeats is removed exactly at its session timeout."""
    ids, generation = service.stable({}, {"session_timeout_ms": 2 * SESSION_MS})
    service.advance(SESSION_MS - 1)
    assert service.members() == ids
    service.advance(1)
    assert service.members() == [ids[1]]
    assert service.beat(ids[1], generation) == Code.REBALANCE_IN_PROGRESS


def test_heartbeats_and_commits_keep_a_session_alive(service):
    """Both heartbeats and commits extend a member's session."""
    ids, generation = service.stable({}, {})
    for _ in range(4):
        service.advance(SESSION_MS - 1)
        assert service.beat(ids[0], generation) == Code.NONE
        assert service.commit(ids[1], generation) == Code.NONE
    assert service.state == "Stable"


def test_a_stable_group_stays_stable_for_as_long_as_it_is_heard_of(service):
    """A stable group stays stable while heartbeats arrive; no rebalance deadline remains."""
    ids, generation = service.stable({}, {})
    for _ in range(60):
        service.advance(6_000)
        assert [service.beat(each, generation) for each in ids] == [Code.NONE, Code.NONE]


def test_members_that_vanish_together_cost_one_rebalance(service):
    """Two sessions that expire together empty the group in one generation."""
    _, generation = service.stable({}, {})
    service.advance(SESSION_MS + REBALANCE_MS)
    assert service.state == "Empty"
    assert service.groups.describe("g").generation == generation + 1


def test_a_waiting_member_is_not_expected_to_heartbeat(service):
    """A member whose join waits for a rebalance does not expire without heartbeats."""
    ids, generation = service.stable({}, {})
    waiting = service.join(ids[1], protocols=[("range", subscription("u"))])
    for _ in range(3):
        service.advance(SESSION_MS - 1)
        service.beat(ids[0], generation)
    assert waiting not in service.answers
    assert service.members() == ids


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(service):
    """A leaving member is removed immediately; the last one empties the group."""
    ids, _ = service.stable({}, {})
    assert service.leave((ids[0], None)) == [Code.NONE]
    assert (service.state, service.members()) == ("PreparingRebalance", [ids[1]])
    assert service.leave((ids[1], None)) == [Code.NONE]
    assert service.state == "Empty"


def test_several_leave_at_once_each_with_its_own_code(service):
    """From LeaveGroup 3 on, a request names several members, and each gets its own code."""
    ids, _ = service.stable({}, {"instance_id": "i2"}, {"instance_id": "i3"})
    pending = service.answers[service.join()].member_id
    codes = service.leave(
        (ids[0], None), ("", "i2"), ("wrong", "i3"), ("nobody", None), ("", "i9"), (pending, None)
    )
    assert codes == [
        Code.NONE,
        Code.NONE,
        Code.FENCED_INSTANCE_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
        Code.NONE,
    ]
    assert service.members() == [ids[2]]


def test_a_member_named_twice_leaves_once(service):
    """A member named twice in a request gets UNKNOWN_MEMBER_ID the second time."""
    ids, _ = service.stable({})
    assert service.leave((ids[0], None), (ids[0], None)) == [Code.NONE, Code.UNKNOWN_MEMBER_ID]


def test_a_member_that_leaves_while_it_waits_is_answered(service):
    """If a member leaves, its waiting join or sync returns UNKNOWN_MEMBER_ID."""
    member_id, _ = service.enter()
    _, parked = service.enter()
    service.leave((service.members()[-1], None))
    assert service.answers[parked].code == Code.UNKNOWN_MEMBER_ID
    service.join(version=0)
    service.join(member_id)
    syncing = service.sync(service.members()[-1], service.groups.describe("g").generation)
    assert syncing not in service.answers
    service.leave((service.members()[-1], None))
    assert service.answers[syncing].code == Code.UNKNOWN_MEMBER_ID


# --- static members -------------------------------------------------------------------------


def test_a_static_member_needs_no_round_for_an_id(service):
    """A static member joins in one request, because its instance ID identifies it."""
    assert service.answers[service.join(**STATIC)].code == Code.NONE


def test_a_static_member_that_comes_back_disturbs_nobody(service):
    """A static member that rejoins a stable group gets a new ID and its old assignment."""
    ids, generation = service.stable({}, STATIC)
    answer = service.answers[service.join(**STATIC)]
    assert (answer.code, answer.generation) == (Code.NONE, generation)
    assert answer.member_id not in ids
    assert service.state == "Stable"
    synced = service.sync(answer.member_id, generation, instance_id="i1")
    assert service.answers[synced].assignment == ids[1].encode()


def test_the_former_self_of_a_static_member_is_fenced(service):
    """All requests under a static member's old ID are fenced."""
    ids, generation = service.stable(STATIC)
    service.join(**STATIC)
    assert service.beat(ids[0], generation, "i1") == Code.FENCED_INSTANCE_ID
    assert service.commit(ids[0], generation, instance_id="i1") == Code.FENCED_INSTANCE_ID
    assert service.answers[service.join(ids[0], **STATIC)].code == Code.FENCED_INSTANCE_ID
    stale = service.sync(ids[0], generation, instance_id="i1")
    assert service.answers[stale].code == Code.FENCED_INSTANCE_ID


def test_a_parked_request_of_the_former_self_is_fenced_at_once(service):
    """If a second process joins with the same instance ID, the first one's request is fenced."""
    service.stable({})
    first = service.join(**STATIC)
    assert first not in service.answers
    second = service.join(**STATIC)
    assert service.answers[first].code == Code.FENCED_INSTANCE_ID
    assert second not in service.answers


def test_a_static_member_with_other_topics_starts_a_rebalance(service):
    """A static member that rejoins with other topics starts a rebalance."""
    service.stable({}, STATIC)
    token = service.join(**STATIC, protocols=[("range", subscription("t", "u"))])
    assert token not in service.answers
    assert service.state == "PreparingRebalance"


def test_a_static_leader_that_comes_back_leaves_the_assignment_be(service):
    """A static leader that rejoins keeps the assignment.

    From JoinGroup 9 on it gets the members and ``skip_assignment``.
    """
    ids, _ = service.stable(STATIC, {})
    answer = service.answers[service.join(**STATIC)]
    assert answer.leader == answer.member_id
    assert (answer.skip_assignment, len(answer.members)) == (True, 2)
    old = service.answers[service.join(**STATIC, version=8)]
    assert (old.skip_assignment, old.members) == (False, ())
    assert old.leader == answer.member_id != old.member_id  # so it does not act as the leader
    assert service.members()[1] == ids[1]


def test_a_static_member_that_comes_back_before_the_sync_starts_over(service):
    """A static member that rejoins before the leader's sync starts a new rebalance."""
    service.join(version=0)
    token = service.join(**STATIC)
    service.join("m1")
    assert service.answers[token].generation == 2
    service.join(**STATIC)
    assert service.state == "PreparingRebalance"


def test_a_static_member_that_comes_back_before_its_own_sync_must_still_sync(service):
    """A static member that rejoins before its own sync must sync under its new ID."""
    service.join(version=0)
    service.join(**STATIC)
    service.join("m1")
    service.sync("m1", 2, {})
    new_id = service.answers[service.join(**STATIC)].member_id
    assert service.state == "Stable"
    service.sync(new_id, 2, instance_id="i1")
    for _ in range(2 * REBALANCE_MS // 6_000):
        assert [service.beat("m1", 2), service.beat(new_id, 2)] == [Code.NONE, Code.NONE]
        service.advance(6_000)


def test_a_static_member_keeps_its_place_while_it_is_away(service):
    """A static member that misses a rebalance stays a member until its session expires."""
    ids, generation = service.stable(
        {"rebalance_timeout_ms": 1_000}, {**STATIC, "rebalance_timeout_ms": 1_000}
    )
    token = service.join(ids[0], rebalance_timeout_ms=1_000)
    service.advance(1_000)
    assert service.answers[token].generation == generation + 1
    assert service.members() == ids


def test_a_rebalance_nobody_joins_waits_for_sessions_to_end(service):
    """If only absent static members remain, the rebalance waits until their sessions expire."""
    ids, _ = service.stable({}, {**STATIC, "rebalance_timeout_ms": 0})
    service.leave((ids[0], None))
    assert service.state == "PreparingRebalance"
    service.advance(SESSION_MS - 1)
    assert service.members() == [ids[1]]
    service.advance(REBALANCE_MS)
    assert service.state == "Empty"


def test_a_pending_id_with_an_instance_is_nobody(service):
    """A join with a pending member ID and an instance ID returns UNKNOWN_MEMBER_ID."""
    pending = service.answers[service.join()].member_id
    assert service.answers[service.join(pending, **STATIC)].code == Code.UNKNOWN_MEMBER_ID


# --- offsets --------------------------------------------------------------------------------


def test_offsets_are_durable_before_the_commit_is_answered(service):
    """Committed offsets are persisted before the reply."""
    assert service.commit() == Code.NONE
    kinds = [type(each) for each in service.trace if not isinstance(each, SetTimer)]
    assert kinds == [PersistOffsets, Reply]
    assert service.cursors[T0].offset == 5


def test_a_simple_reader_commits_only_while_the_group_is_empty(service):
    """A commit without a member and generation succeeds only while the group is empty."""
    assert service.commit() == Code.NONE
    service.stable({})
    assert service.commit() == Code.UNKNOWN_MEMBER_ID


def test_a_members_commit_must_fit_the_generation(service):
    """A member's commit must carry the current generation."""
    ids, generation = service.stable({})
    assert service.commit(ids[0], generation) == Code.NONE
    assert service.commit(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert service.commit("nobody", generation) == Code.UNKNOWN_MEMBER_ID


def test_commits_while_a_rebalance_completes_are_refused(service):
    """A commit between join and sync is refused; during the joins it succeeds."""
    ids, generation = service.stable({}, {})
    service.join(ids[0])
    assert service.commit(ids[1], generation) == Code.NONE
    service.join(ids[1])
    assert service.commit(ids[1], generation + 1) == Code.REBALANCE_IN_PROGRESS
    code = service.groups.check_txn_commit("g", ids[1], generation + 1, None)
    assert code == Code.NONE  # transactional commits do not depend on the group's state


@pytest.mark.parametrize(
    ("version", "code"), [(8, Code.ILLEGAL_GENERATION), (9, Code.GROUP_ID_NOT_FOUND)]
)
def test_a_members_commit_to_an_absent_group_is_refused(service, version, code):
    """A member's commit to an absent group returns a code that its client version knows."""
    assert service.commit("m", 3, version=version) == code


def test_a_note_that_is_too_long_is_refused_for_its_partition_only():
    """A commit with metadata above the size limit is refused for that partition."""
    service = GroupHarness(GroupSettings(offset_metadata_bytes_max=3))
    assert service.commit(metadata="ééé") == Code.OFFSET_METADATA_TOO_LARGE
    assert service.cursors == {}
    assert service.commit(metadata="abc") == Code.NONE


@pytest.mark.parametrize(
    ("generation", "member_id", "code"),
    [
        (-1, "", Code.NONE),
        (3, "m", Code.ILLEGAL_GENERATION),
    ],
)
def test_a_transaction_may_commit_for_a_group_that_is_not_there(
    service, generation, member_id, code
):
    """A transaction may commit offsets for an absent group if it names no member."""
    assert service.groups.check_txn_commit("absent", member_id, generation, None) == code


def test_offsets_of_topics_still_read_cannot_be_deleted(service):
    """Offsets of subscribed topics cannot be deleted; other offsets can."""
    ids, generation = service.stable({})
    service.commit(ids[0], generation)
    u0 = TopicPartition("u", 0)
    answer = service.delete_offsets(T0, u0)
    assert answer.codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC), (u0, Code.NONE))
    assert T0 in service.cursors
    service.leave((ids[0], None))
    assert service.delete_offsets(T0).codes == ((T0, Code.NONE),)
    assert service.cursors == {}


def test_what_a_group_reads_may_be_unknown(service):
    """Offsets cannot be deleted if the subscription is unreadable or of another protocol type."""
    service.stable({"protocols": [("range", b"??")]})
    assert service.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)
    other = GroupHarness()
    other.stable({"protocol_type": "connect"})
    assert other.delete_offsets(T0).code == Code.NON_EMPTY_GROUP
    assert GroupHarness().delete_offsets(T0).code == Code.GROUP_ID_NOT_FOUND


# --- deletion, listing, expiry --------------------------------------------------------------


def test_only_an_empty_group_can_be_deleted(service):
    """Only an empty group can be deleted; its cursors are deleted with it."""
    assert service.delete() == Code.GROUP_ID_NOT_FOUND
    service.commit()
    ids, _ = service.stable({})
    assert service.delete() == Code.NON_EMPTY_GROUP
    service.leave((ids[0], None))
    assert service.delete() == Code.NONE
    assert service.cursors == {}
    assert service.groups.describe("g") is None


def test_groups_are_listed_by_state(service):
    """Groups can be listed by Kafka's state names, in any case."""
    service.commit()
    service.stable({})
    service.groups.restore("a", StoredGroup(has_offsets=True), 0)
    assert [each.group_id for each in service.groups.listing()] == ["a", "g"]
    assert [each.group_id for each in service.groups.listing(["sTable"])] == ["g"]
    assert service.groups.count()["Empty"] == 1


def test_a_description_shows_assignments_only_while_they_stand(service):
    """During a rebalance, a description contains no assignments."""
    ids, _ = service.stable({})
    (member,) = service.groups.describe("g").members
    assert (member.assignment, member.client_id) == (ids[0].encode(), "client")
    service.enter()
    description = service.groups.describe("g")
    assert description.protocol == ""
    assert {each.assignment for each in description.members} == {b""}


def test_a_group_is_remembered_once_its_type_is_known(service):
    """A group's type is persisted once, before its first generation is announced."""
    ids, _ = service.stable({})
    settle(service, [Consumer(service), *[_existing(service, each) for each in ids]])
    assert service.trace.count(PersistGroup("consumer")) == 1
    assert service.remembered == "consumer"


def _existing(service, member_id):
    consumer = Consumer(service)
    consumer.member_id = member_id
    return consumer


def test_an_empty_group_without_offsets_is_forgotten_in_time(service):
    """An empty group without offsets is forgotten after a timeout; one with offsets is kept."""
    ids, _ = service.stable({})
    service.leave((ids[0], None))
    service.advance(QUICK.forget_empty_ms)
    assert service.forgotten
    assert EraseGroup(keeps_cursors=True) in service.trace
    kept = GroupHarness()
    kept.commit()
    kept.advance(10 * QUICK.forget_empty_ms)
    assert not kept.forgotten


def test_a_restored_group_is_empty_and_its_old_members_are_strangers():
    """A restored group is empty, and its former members get UNKNOWN_MEMBER_ID."""
    groups = GroupDirectory(QUICK)
    assert groups.restore("g", StoredGroup("consumer", has_offsets=True), 0) == []
    description = groups.describe("g")
    assert (description.state, description.protocol_type) == ("Empty", "consumer")
    beat = groups.handle("g", Heartbeat(token=1, member_id="m", generation=4), 0)
    assert beat[0].answer.code == Code.UNKNOWN_MEMBER_ID
    left = groups.handle("g", Leave(2, (Leaver("m"),)), 0)
    assert left[0].answer.members[0].code == Code.UNKNOWN_MEMBER_ID


def test_a_group_needs_a_name_to_be_joined():
    """A group with an empty name cannot be joined, but offsets can be committed to it."""
    service = GroupHarness(group_id="")
    assert service.answers[service.join()].code == Code.INVALID_GROUP_ID
    assert service.beat("m", 1) == Code.INVALID_GROUP_ID
    assert service.commit() == Code.NONE


def test_a_tick_for_an_absent_group_is_nothing():
    """A tick for a group that does not exist does nothing."""
    assert GroupDirectory().handle("g", Tick(), 0) == []


def test_heartbeats_do_not_touch_the_timer(service):
    """A heartbeat does not set a new timer."""
    ids, generation = service.stable({})
    before = len([each for each in service.trace if isinstance(each, SetTimer)])
    for _ in range(5):
        service.beat(ids[0], generation)
    assert len([each for each in service.trace if isinstance(each, SetTimer)]) == before


def test_settings_default_to_the_config_tables():
    """The default group settings equal the defaults of the broker settings."""
    assert GroupSettings.from_config(BrokerConfig()) == GroupSettings()


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription("a", "b"), {"a", "b"}),
        (subscription(), set()),
        (subscription("a") + b"more of a later version", {"a"}),
        (b"", None),
        (b"\0\0\0\0\0\2\0\1a", None),
        (b"\0\0\0\0\0\1\0\1\xff", None),
        (b"\0\0\0\0\0\1\xff\xff", None),
    ],
)
def test_a_subscription_is_read_from_its_prefix(metadata, topics):
    """The topics parse from the common prefix of all versions; unreadable bytes return None."""
    assert parse_subscription(metadata) == topics
