"""The classic group protocol, rule by rule; times in ms from 0."""

from __future__ import annotations

import pytest

from cordwood.config import BrokerConfig
from cordwood.decide.codes import Code
from cordwood.decide.groups import (
    EraseGroup,
    Groups,
    GroupSettings,
    Heartbeat,
    Leave,
    Leaver,
    PersistGroup,
    PersistOffsets,
    Reply,
    SetTimer,
    Tick,
    parse_subscription,
)
from cordwood.model import TopicPartition
from support.coordination import (
    QUICK,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    GroupDesk,
    settle,
    subscription,
)

T0 = TopicPartition("t", 0)
STATIC = {"instance_id": "i1"}


@pytest.fixture
def desk():
    return GroupDesk()


# --- joining --------------------------------------------------------------------------------


def test_a_new_dynamic_member_is_asked_to_come_back_with_an_id(desk):
    """From JoinGroup 4 on a member without id gets one and 79, and is not a member yet."""
    answer = desk.answers[desk.join()]
    assert (answer.code, answer.member_id) == (Code.MEMBER_ID_REQUIRED, "m1")
    assert desk.members() == []


def test_an_old_client_joins_in_one_round(desk):
    """Before JoinGroup 4 the first join counts."""
    answer = desk.answers[desk.join(version=3)]
    assert (answer.code, answer.generation, answer.leader) == (Code.NONE, 1, "m1")


def test_the_leader_is_told_the_members_and_others_are_not(desk):
    """Exactly one member gets the list."""
    for _ in range(2):
        desk.join(version=0)  # the second interrupts the first's generation
    first = desk.join("m1")
    lead, follow = desk.answers[first], desk.answers[2]
    assert [each.member_id for each in lead.members] == ["m1", "m2"]
    assert follow.members == ()
    assert lead.leader == follow.leader == "m1"
    assert lead.generation == follow.generation == 2


def test_a_pending_member_holds_up_the_others_until_its_session_ends(desk):
    """Who was given an id is waited for, but not longer than the session it asked for."""
    ids, _ = desk.stable({})
    desk.join()  # never comes back
    token = desk.join(ids[0])  # the leader rejoins
    assert token not in desk.answers
    desk.advance(SESSION_MS)
    assert desk.answers[token].generation == 2


def test_an_unknown_id_cannot_join(desk):
    """After a restart old ids mean nothing; the group is not even made for them."""
    assert desk.answers[desk.join("from-before")].code == Code.UNKNOWN_MEMBER_ID
    assert desk.groups.describe("g") is None
    desk.stable({})
    assert desk.answers[desk.join("from-before")].code == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_outside_the_bounds_is_refused(desk, session_ms):
    """The broker bounds how long or short a session may be."""
    token = desk.join(session_timeout_ms=session_ms)
    assert desk.answers[token].code == Code.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    "how",
    [
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_first_member_must_name_a_type_and_a_protocol(desk, how):
    """Nothing can be agreed on with somebody who offers nothing."""
    assert desk.answers[desk.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    "how",
    [
        {"protocols": (("roundrobin", b""),)},
        {"protocol_type": "connect"},
    ],
)
def test_a_member_nobody_can_agree_with_is_refused(desk, how):
    """Type must be the group's, and one protocol must be shared by all."""
    desk.stable({})
    assert desk.answers[desk.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


def test_members_vote_for_the_protocol_among_those_all_share(desk):
    """The majority's first choice wins; what one member lacks is no choice."""
    protocols = {name: (name, name.encode()) for name in ("a", "b", "c")}
    ids, _ = desk.stable(
        {"protocols": [protocols["c"], protocols["a"], protocols["b"]]},
        {"protocols": [protocols["b"], protocols["a"]]},
        {"protocols": [protocols["b"], protocols["a"]]},
    )
    description = desk.groups.describe("g")
    assert description.protocol == "b"
    assert {each.metadata for each in description.members} == {b"b"}
    assert len(ids) == 3


def test_a_full_group_turns_the_next_one_away():
    """Beyond the largest size a join is refused, whoever is in stays in."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=0, members_max=2))
    ids, generation = desk.stable({}, {})
    assert desk.answers[desk.join()].code == Code.GROUP_MAX_SIZE_REACHED
    assert desk.members() == ids
    assert desk.beat(ids[0], generation) == Code.NONE


def test_a_static_member_comes_back_to_a_full_group():
    """It takes the place it has."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=0, members_max=1))
    desk.stable(STATIC)
    assert desk.answers[desk.join(**STATIC)].code == Code.NONE


def test_ids_given_out_are_bounded_too():
    """Joins that never come back cannot fill memory."""
    desk = GroupDesk(GroupSettings(members_max=2))
    codes = [desk.answers[desk.join()].code for _ in range(3)]
    assert codes == [
        Code.MEMBER_ID_REQUIRED,
        Code.MEMBER_ID_REQUIRED,
        Code.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_retried_join_answers_the_one_it_overtakes(desk):
    """A client that sent its join again leaves no request hanging."""
    desk.stable({})
    member_id, first = desk.enter()
    second = desk.join(member_id)
    assert desk.answers[first].code == Code.REBALANCE_IN_PROGRESS
    assert second not in desk.answers


def test_a_follower_that_rejoins_unchanged_is_told_the_generation_again(desk):
    """It missed the answer; nobody else is disturbed."""
    ids, generation = desk.stable({}, {})
    answer = desk.answers[desk.join(ids[1])]
    assert (answer.code, answer.generation, answer.members) == (Code.NONE, generation, ())
    assert desk.state == "Stable"


def test_a_member_that_missed_its_join_answer_gets_it_again_before_the_sync(desk):
    """In CompletingRebalance an unchanged join is answered from the books, the leader's in full."""
    member_id, _ = desk.enter()
    again = desk.answers[desk.join(member_id)]
    assert (again.generation, len(again.members)) == (1, 1)
    assert desk.state == "CompletingRebalance"


def test_a_follower_with_other_topics_starts_a_rebalance(desk):
    """Changed metadata is for the leader to see."""
    ids, _ = desk.stable({}, {})
    assert desk.join(ids[1], protocols=[("range", subscription("u"))]) not in desk.answers
    assert desk.state == "PreparingRebalance"


def test_a_leader_that_rejoins_starts_a_rebalance(desk):
    """It saw something change that is not in its metadata, such as a topic that grew."""
    ids, _ = desk.stable({}, {})
    assert desk.join(ids[0]) not in desk.answers
    assert desk.state == "PreparingRebalance"


# --- the first rebalance --------------------------------------------------------------------


def test_the_first_rebalance_waits_for_members_started_together():
    """Within the delay, members gather into one generation; each arrival prolongs it once."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=100))
    tokens = []
    for _ in range(3):
        tokens.append(desk.enter()[1])
        desk.advance(60)
    assert not any(token in desk.answers for token in tokens)
    desk.advance(200)
    assert {desk.answers[token].generation for token in tokens} == {1}


def test_the_first_rebalance_ends_although_members_keep_coming():
    """It never lasts longer than the rebalance timeout."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=100))
    token = desk.enter(rebalance_timeout_ms=300)[1]
    for _ in range(6):
        assert desk.state == "PreparingRebalance" or token in desk.answers
        desk.advance(50)
        desk.enter(rebalance_timeout_ms=300)
    assert token in desk.answers


def test_a_member_that_was_just_given_an_id_prolongs_the_first_rebalance():
    """It will be back in a moment; beginning without it would only mean beginning twice."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=100))
    token = desk.enter()[1]
    desk.advance(90)
    late = desk.answers[desk.join()].member_id
    desk.advance(50)
    assert token not in desk.answers
    joined = desk.join(late)
    desk.advance(200)
    assert desk.answers[token].generation == desk.answers[joined].generation == 1


def test_what_is_read_is_unknown_until_the_first_generation():
    """So offsets are safe from deletion while the first members gather."""
    desk = GroupDesk(GroupSettings(initial_rebalance_delay_ms=100))
    desk.commit()
    desk.enter()
    assert desk.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)


# --- rebalances -----------------------------------------------------------------------------


def test_heartbeats_tell_of_a_rebalance(desk):
    """A member in good standing learns from its heartbeat that it must rejoin."""
    ids, generation = desk.stable({})
    desk.enter()
    assert desk.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
    token = desk.join(ids[0])
    assert desk.answers[token].generation == generation + 1


def test_who_does_not_rejoin_in_time_is_out(desk):
    """After the longest rebalance timeout the rest goes on, under a new leader if need be."""
    slow = {"rebalance_timeout_ms": 2 * REBALANCE_MS}
    ids, generation = desk.stable({}, slow)
    token = desk.join(ids[1], protocols=[("range", subscription("u"))], **slow)
    for _ in range(23):
        desk.advance(2 * REBALANCE_MS // 24)
        assert desk.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
        assert token not in desk.answers
    desk.advance(2 * REBALANCE_MS // 24)
    assert desk.answers[token].leader == ids[1]
    assert desk.members() == [ids[1]]
    assert desk.beat(ids[0], generation) == Code.UNKNOWN_MEMBER_ID


def test_a_new_rebalance_sends_waiting_syncs_back(desk):
    """Who waits for an assignment of a generation that is over must join again."""
    for _ in range(2):
        desk.join(version=0)
    desk.join("m1")
    waiting = desk.sync("m2", 2)
    assert waiting not in desk.answers
    desk.join(version=0)
    assert desk.answers[waiting].code == Code.REBALANCE_IN_PROGRESS


def test_a_member_that_never_syncs_is_out(desk):
    """It has the rebalance timeout to fetch its part; heartbeats do not save it."""
    for _ in range(2):
        desk.join(version=0)
    desk.join("m1")
    synced = desk.sync("m1", 2, {"m1": b"all"})
    assert desk.answers[synced].assignment == b"all"
    for _ in range(REBALANCE_MS // 6_000):
        for member_id in ("m1", "m2"):
            assert desk.beat(member_id, 2) == Code.NONE
        desk.advance(6_000)
    assert desk.members() == ["m1"]
    assert desk.state == "PreparingRebalance"


def test_a_leader_that_never_syncs_is_out_and_its_followers_join_again(desk):
    """A follower waiting for the leader's assignment is not left hanging."""
    for _ in range(2):
        desk.join(version=0)
    desk.join("m1")
    waiting = desk.sync("m2", 2)
    desk.advance(SESSION_MS)
    assert desk.answers[waiting].code == Code.REBALANCE_IN_PROGRESS
    assert desk.members() == ["m2"]


def test_the_assignment_goes_to_each_and_nothing_to_who_got_none(desk):
    """A member the leader left out has an empty assignment."""
    ids, generation = desk.stable({}, {})
    again = desk.answers[desk.sync(ids[1], generation)]
    assert again.assignment == ids[1].encode()
    assert (again.protocol_type, again.protocol) == ("consumer", "range")
    token = desk.join(ids[0])
    desk.join(ids[1])
    assert desk.answers[token].generation == generation + 1
    desk.sync(ids[1], generation + 1)
    desk.sync(ids[0], generation + 1, {})
    assert all(each.assignment == b"" for each in desk.groups.describe("g").members)


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ({"protocol": "other"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "range", "protocol_type": "consumer"}, Code.NONE),
    ],
)
def test_a_sync_that_means_another_protocol_is_refused(desk, says, code):
    """From SyncGroup 5 on a member says what it believes was chosen."""
    ids, generation = desk.stable({})
    assert desk.answers[desk.sync(ids[0], generation, **says)].code == code


def test_an_old_generation_or_unknown_member_is_refused(desk):
    """Heartbeats and syncs must name a member and the present generation."""
    ids, generation = desk.stable({})
    assert desk.beat(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert desk.beat("nobody", generation) == Code.UNKNOWN_MEMBER_ID
    assert desk.answers[desk.sync(ids[0], 9)].code == Code.ILLEGAL_GENERATION
    assert desk.answers[desk.sync("nobody", 9)].code == Code.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_is_away_passes_the_lead_to_one_who_is_here(desk):
    """It keeps its place, but somebody must make the assignment."""
    short = {"rebalance_timeout_ms": 1_000}
    ids, generation = desk.stable({**STATIC, **short}, short)
    token = desk.join(ids[1], protocols=[("range", subscription("u"))], **short)
    desk.advance(1_000)
    answer = desk.answers[token]
    assert (answer.generation, answer.leader) == (generation + 1, ids[1])
    assert [each.member_id for each in answer.members] == ids


def test_a_newcomer_is_not_waited_for_for_ever(desk):
    """Its parked join cannot heartbeat; after five minutes it must show itself again."""
    slow = {"rebalance_timeout_ms": 3_600_000}
    ids, generation = desk.stable(slow)
    _, token = desk.enter(**slow)
    for _ in range(60):
        assert token not in desk.answers
        assert desk.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
        desk.advance(5_000)
    assert desk.answers[token].code == Code.UNKNOWN_MEMBER_ID
    assert desk.members() == ids


# --- sessions and leaving -------------------------------------------------------------------


def test_a_silent_members_session_ends(desk):
    """Without heartbeats a member is gone after its session timeout, not before."""
    ids, generation = desk.stable({}, {"session_timeout_ms": 2 * SESSION_MS})
    desk.advance(SESSION_MS - 1)
    assert desk.members() == ids
    desk.advance(1)
    assert desk.members() == [ids[1]]
    assert desk.beat(ids[1], generation) == Code.REBALANCE_IN_PROGRESS


def test_heartbeats_and_commits_keep_a_session_alive(desk):
    """Both show that the member lives."""
    ids, generation = desk.stable({}, {})
    for _ in range(4):
        desk.advance(SESSION_MS - 1)
        assert desk.beat(ids[0], generation) == Code.NONE
        assert desk.commit(ids[1], generation) == Code.NONE
    assert desk.state == "Stable"


def test_a_stable_group_stays_stable_for_as_long_as_it_is_heard_of(desk):
    """No deadline of the last rebalance is left behind."""
    ids, generation = desk.stable({}, {})
    for _ in range(60):
        desk.advance(6_000)
        assert [desk.beat(each, generation) for each in ids] == [Code.NONE, Code.NONE]


def test_members_that_vanish_together_cost_one_rebalance(desk):
    """Two sessions that end at the same time make the group empty in one step."""
    _, generation = desk.stable({}, {})
    desk.advance(SESSION_MS + REBALANCE_MS)
    assert desk.state == "Empty"
    assert desk.groups.describe("g").generation == generation + 1


def test_a_waiting_member_is_not_expected_to_heartbeat(desk):
    """Whoever rejoined and waits for the others outlives its session timeout."""
    ids, generation = desk.stable({}, {})
    waiting = desk.join(ids[1], protocols=[("range", subscription("u"))])
    for _ in range(3):
        desk.advance(SESSION_MS - 1)
        desk.beat(ids[0], generation)
    assert waiting not in desk.answers
    assert desk.members() == ids


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(desk):
    """A member that leaves is gone at once."""
    ids, _ = desk.stable({}, {})
    assert desk.leave((ids[0], None)) == [Code.NONE]
    assert (desk.state, desk.members()) == ("PreparingRebalance", [ids[1]])
    assert desk.leave((ids[1], None)) == [Code.NONE]
    assert desk.state == "Empty"


def test_several_leave_at_once_each_with_its_own_code(desk):
    """From LeaveGroup 3 on one request names many; a stranger does not harm the rest."""
    ids, _ = desk.stable({}, {"instance_id": "i2"}, {"instance_id": "i3"})
    pending = desk.answers[desk.join()].member_id
    codes = desk.leave(
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
    assert desk.members() == [ids[2]]


def test_a_member_named_twice_leaves_once(desk):
    """The second mention is of somebody who is gone."""
    ids, _ = desk.stable({})
    assert desk.leave((ids[0], None), (ids[0], None)) == [Code.NONE, Code.UNKNOWN_MEMBER_ID]


def test_a_member_that_leaves_while_it_waits_is_answered(desk):
    """Its parked join or sync says it is unknown."""
    member_id, _ = desk.enter()
    _, parked = desk.enter()
    desk.leave((desk.members()[-1], None))
    assert desk.answers[parked].code == Code.UNKNOWN_MEMBER_ID
    desk.join(version=0)
    desk.join(member_id)
    syncing = desk.sync(desk.members()[-1], desk.groups.describe("g").generation)
    assert syncing not in desk.answers
    desk.leave((desk.members()[-1], None))
    assert desk.answers[syncing].code == Code.UNKNOWN_MEMBER_ID


# --- static members -------------------------------------------------------------------------


def test_a_static_member_needs_no_round_for_an_id(desk):
    """Its instance is its identity."""
    assert desk.answers[desk.join(**STATIC)].code == Code.NONE


def test_a_static_member_that_comes_back_disturbs_nobody(desk):
    """In a stable group it gets a new id, its old assignment and the present generation."""
    ids, generation = desk.stable({}, STATIC)
    answer = desk.answers[desk.join(**STATIC)]
    assert (answer.code, answer.generation) == (Code.NONE, generation)
    assert answer.member_id not in ids
    assert desk.state == "Stable"
    synced = desk.sync(answer.member_id, generation, instance_id="i1")
    assert desk.answers[synced].assignment == ids[1].encode()


def test_the_former_self_of_a_static_member_is_fenced(desk):
    """Whatever it sends under the old id is refused for good."""
    ids, generation = desk.stable(STATIC)
    desk.join(**STATIC)
    assert desk.beat(ids[0], generation, "i1") == Code.FENCED_INSTANCE_ID
    assert desk.commit(ids[0], generation, instance_id="i1") == Code.FENCED_INSTANCE_ID
    assert desk.answers[desk.join(ids[0], **STATIC)].code == Code.FENCED_INSTANCE_ID
    stale = desk.sync(ids[0], generation, instance_id="i1")
    assert desk.answers[stale].code == Code.FENCED_INSTANCE_ID


def test_a_parked_request_of_the_former_self_is_fenced_at_once(desk):
    """Two processes with one instance id: the later one wins, the earlier one is told."""
    desk.stable({})
    first = desk.join(**STATIC)
    assert first not in desk.answers
    second = desk.join(**STATIC)
    assert desk.answers[first].code == Code.FENCED_INSTANCE_ID
    assert second not in desk.answers


def test_a_static_member_with_other_topics_starts_a_rebalance(desk):
    """The standing assignment was made for other topics."""
    desk.stable({}, STATIC)
    token = desk.join(**STATIC, protocols=[("range", subscription("t", "u"))])
    assert token not in desk.answers
    assert desk.state == "PreparingRebalance"


def test_a_static_leader_that_comes_back_leaves_the_assignment_be(desk):
    """From JoinGroup 9 on it is told the members, and to skip the assignment."""
    ids, _ = desk.stable(STATIC, {})
    answer = desk.answers[desk.join(**STATIC)]
    assert answer.leader == answer.member_id
    assert (answer.skip_assignment, len(answer.members)) == (True, 2)
    old = desk.answers[desk.join(**STATIC, version=8)]
    assert (old.skip_assignment, old.members) == (False, ())
    assert old.leader == answer.member_id != old.member_id  # it must not think it leads
    assert desk.members()[1] == ids[1]


def test_a_static_member_that_comes_back_before_the_sync_starts_over(desk):
    """The leader would assign to an id that is gone."""
    desk.join(version=0)
    token = desk.join(**STATIC)
    desk.join("m1")
    assert desk.answers[token].generation == 2
    desk.join(**STATIC)
    assert desk.state == "PreparingRebalance"


def test_a_static_member_that_comes_back_before_its_own_sync_must_still_sync(desk):
    """The wait for its sync goes over to its new id, and ends when that one syncs."""
    desk.join(version=0)
    desk.join(**STATIC)
    desk.join("m1")
    desk.sync("m1", 2, {})
    new_id = desk.answers[desk.join(**STATIC)].member_id
    assert desk.state == "Stable"
    desk.sync(new_id, 2, instance_id="i1")
    for _ in range(2 * REBALANCE_MS // 6_000):
        assert [desk.beat("m1", 2), desk.beat(new_id, 2)] == [Code.NONE, Code.NONE]
        desk.advance(6_000)


def test_a_static_member_keeps_its_place_while_it_is_away(desk):
    """It is not thrown out of a rebalance it misses, only when its session ends."""
    ids, generation = desk.stable(
        {"rebalance_timeout_ms": 1_000}, {**STATIC, "rebalance_timeout_ms": 1_000}
    )
    token = desk.join(ids[0], rebalance_timeout_ms=1_000)
    desk.advance(1_000)
    assert desk.answers[token].generation == generation + 1
    assert desk.members() == ids


def test_a_rebalance_nobody_joins_waits_for_sessions_to_end(desk):
    """Only absent static members: the group goes on when one returns, or ends with the last."""
    ids, _ = desk.stable({}, {**STATIC, "rebalance_timeout_ms": 0})
    desk.leave((ids[0], None))
    assert desk.state == "PreparingRebalance"
    desk.advance(SESSION_MS - 1)
    assert desk.members() == [ids[1]]
    desk.advance(REBALANCE_MS)
    assert desk.state == "Empty"


def test_a_pending_id_with_an_instance_is_nobody(desk):
    """A static member never gets an id to come back with."""
    pending = desk.answers[desk.join()].member_id
    assert desk.answers[desk.join(pending, **STATIC)].code == Code.UNKNOWN_MEMBER_ID


# --- offsets --------------------------------------------------------------------------------


def test_offsets_are_durable_before_the_commit_is_answered(desk):
    """The cursor moves first."""
    assert desk.commit() == Code.NONE
    kinds = [type(each) for each in desk.trace if not isinstance(each, SetTimer)]
    assert kinds == [PersistOffsets, Reply]
    assert desk.cursors[T0].offset == 5


def test_a_simple_reader_commits_only_while_the_group_is_empty(desk):
    """Without generation there is no telling it from a member that was thrown out."""
    assert desk.commit() == Code.NONE
    desk.stable({})
    assert desk.commit() == Code.UNKNOWN_MEMBER_ID


def test_a_members_commit_must_fit_the_generation(desk):
    """A zombie cannot move the group's cursors."""
    ids, generation = desk.stable({})
    assert desk.commit(ids[0], generation) == Code.NONE
    assert desk.commit(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert desk.commit("nobody", generation) == Code.UNKNOWN_MEMBER_ID


def test_commits_while_a_rebalance_completes_are_refused(desk):
    """The member has its new generation but not its part; during the joins it may still commit."""
    ids, generation = desk.stable({}, {})
    desk.join(ids[0])
    assert desk.commit(ids[1], generation) == Code.NONE
    desk.join(ids[1])
    assert desk.commit(ids[1], generation + 1) == Code.REBALANCE_IN_PROGRESS
    code = desk.groups.check_txn_commit("g", ids[1], generation + 1, None)
    assert code == Code.NONE  # a transaction's offsets are not bound to the state


@pytest.mark.parametrize(
    ("version", "code"), [(8, Code.ILLEGAL_GENERATION), (9, Code.GROUP_ID_NOT_FOUND)]
)
def test_a_members_commit_to_an_absent_group_is_refused(desk, version, code):
    """Older clients know no better code."""
    assert desk.commit("m", 3, version=version) == code


def test_a_note_that_is_too_long_is_refused_for_its_partition_only():
    """Neighbours in the same commit are kept."""
    desk = GroupDesk(GroupSettings(offset_metadata_bytes_max=3))
    assert desk.commit(metadata="ééé") == Code.OFFSET_METADATA_TOO_LARGE
    assert desk.cursors == {}
    assert desk.commit(metadata="abc") == Code.NONE


@pytest.mark.parametrize(
    ("generation", "member_id", "code"),
    [
        (-1, "", Code.NONE),
        (3, "m", Code.ILLEGAL_GENERATION),
    ],
)
def test_a_transaction_may_commit_for_a_group_that_is_not_there(desk, generation, member_id, code):
    """If it claims no membership."""
    assert desk.groups.check_txn_commit("absent", member_id, generation, None) == code


def test_offsets_of_topics_still_read_cannot_be_deleted(desk):
    """Others can."""
    ids, generation = desk.stable({})
    desk.commit(ids[0], generation)
    u0 = TopicPartition("u", 0)
    answer = desk.delete_offsets(T0, u0)
    assert answer.codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC), (u0, Code.NONE))
    assert T0 in desk.cursors
    desk.leave((ids[0], None))
    assert desk.delete_offsets(T0).codes == ((T0, Code.NONE),)
    assert desk.cursors == {}


def test_what_a_group_reads_may_be_unknown(desk):
    """Metadata we cannot read means any topic may be read; another type is left alone."""
    desk.stable({"protocols": [("range", b"??")]})
    assert desk.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)
    other = GroupDesk()
    other.stable({"protocol_type": "connect"})
    assert other.delete_offsets(T0).code == Code.NON_EMPTY_GROUP
    assert GroupDesk().delete_offsets(T0).code == Code.GROUP_ID_NOT_FOUND


# --- deletion, listing, the end -------------------------------------------------------------


def test_only_an_empty_group_can_be_deleted(desk):
    """And it takes its cursors with it."""
    assert desk.delete() == Code.GROUP_ID_NOT_FOUND
    desk.commit()
    ids, _ = desk.stable({})
    assert desk.delete() == Code.NON_EMPTY_GROUP
    desk.leave((ids[0], None))
    assert desk.delete() == Code.NONE
    assert desk.cursors == {}
    assert desk.groups.describe("g") is None


def test_groups_are_listed_by_state(desk):
    """State names are Kafka's; case does not matter."""
    desk.commit()
    desk.stable({})
    desk.groups.restore("a", protocol_type="", has_offsets=True, now_ms=0)
    assert [each.group_id for each in desk.groups.listing()] == ["a", "g"]
    assert [each.group_id for each in desk.groups.listing(["sTable"])] == ["g"]
    assert desk.groups.count()["Empty"] == 1


def test_a_description_shows_assignments_only_while_they_stand(desk):
    """In a rebalance they may be void."""
    ids, _ = desk.stable({})
    (member,) = desk.groups.describe("g").members
    assert (member.assignment, member.client_id) == (ids[0].encode(), "client")
    desk.enter()
    description = desk.groups.describe("g")
    assert description.protocol == ""
    assert {each.assignment for each in description.members} == {b""}


def test_a_group_is_remembered_once_its_type_is_known(desk):
    """Before the first generation is announced, and not again for each later one."""
    ids, _ = desk.stable({})
    settle(desk, [Consumer(desk), *[_existing(desk, each) for each in ids]])
    assert desk.trace.count(PersistGroup("consumer")) == 1
    assert desk.remembered == "consumer"


def _existing(desk, member_id):
    consumer = Consumer(desk)
    consumer.member_id = member_id
    return consumer


def test_an_empty_group_without_offsets_is_forgotten_in_time(desk):
    """One that committed is not."""
    ids, _ = desk.stable({})
    desk.leave((ids[0], None))
    desk.advance(QUICK.forget_empty_ms)
    assert desk.forgotten
    assert EraseGroup() in desk.trace
    kept = GroupDesk()
    kept.commit()
    kept.advance(10 * QUICK.forget_empty_ms)
    assert not kept.forgotten


def test_a_restored_group_is_empty_and_its_old_members_are_strangers():
    """They get UNKNOWN_MEMBER_ID whatever they send, and join again."""
    groups = Groups(QUICK)
    assert groups.restore("g", protocol_type="consumer", has_offsets=True, now_ms=0) == []
    description = groups.describe("g")
    assert (description.state, description.protocol_type) == ("Empty", "consumer")
    beat = groups.handle("g", Heartbeat(token=1, member_id="m", generation=4), 0)
    assert beat[0].answer.code == Code.UNKNOWN_MEMBER_ID
    left = groups.handle("g", Leave(2, (Leaver("m"),)), 0)
    assert left[0].answer.members[0].code == Code.UNKNOWN_MEMBER_ID


def test_a_group_needs_a_name_to_be_joined():
    """Only offsets may be kept under the empty name, for the oldest clients."""
    desk = GroupDesk(group_id="")
    assert desk.answers[desk.join()].code == Code.INVALID_GROUP_ID
    assert desk.beat("m", 1) == Code.INVALID_GROUP_ID
    assert desk.commit() == Code.NONE


def test_a_tick_for_an_absent_group_is_nothing():
    """A timer may outlive its group."""
    assert Groups().handle("g", Tick(), 0) == []


def test_heartbeats_do_not_touch_the_timer(desk):
    """An idle member costs no timer churn: the tick finds out how late it really is."""
    ids, generation = desk.stable({})
    before = len([each for each in desk.trace if isinstance(each, SetTimer)])
    for _ in range(5):
        desk.beat(ids[0], generation)
    assert len([each for each in desk.trace if isinstance(each, SetTimer)]) == before


def test_settings_default_to_the_config_tables():
    """One table of defaults, said twice, must not drift."""
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
    """All versions begin alike; what cannot be read is unknown, not empty."""
    assert parse_subscription(metadata) == topics
