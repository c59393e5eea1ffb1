"""The classic group protocol, rule by rule; times in ms from 0."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.groups import (
    EraseGroup,
    GroupDirectory,
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
    GroupHarness,
    settle,
    subscription,
)

T0 = TopicPartition("t", 0)
STATIC = {"instance_id": "i1"}


@pytest.fixture
def service():
    return GroupHarness()


# --- joining --------------------------------------------------------------------------------


def test_a_new_dynamic_member_is_asked_to_come_back_with_an_id(service):
    """From JoinGroup 4 on a member without id gets one and 79, and is not a member yet."""
    answer = service.answers[service.join()]
    assert (answer.code, answer.member_id) == (Code.MEMBER_ID_REQUIRED, "m1")
    assert service.members() == []


def test_an_old_client_joins_in_one_round(service):
    """Before JoinGroup 4 the first join counts."""
    answer = service.answers[service.join(version=3)]
    assert (answer.code, answer.generation, answer.leader) == (Code.NONE, 1, "m1")


def test_the_leader_is_told_the_members_and_others_are_not(service):
    """Exactly one member gets the list."""
    for _ in range(2):
        service.join(version=0)  # the second interrupts the first's generation
    first = service.join("m1")
    lead, follow = service.answers[first], service.answers[2]
    assert [each.member_id for each in lead.members] == ["m1", "m2"]
    assert follow.members == ()
    assert lead.leader == follow.leader == "m1"
    assert lead.generation == follow.generation == 2


def test_a_pending_member_holds_up_the_others_until_its_session_ends(service):
    """Who was given an id is waited for, but not longer than the session it asked for."""
    ids, _ = service.stable({})
    service.join()  # never comes back
    token = service.join(ids[0])  # the leader rejoins
    assert token not in service.answers
    service.advance(SESSION_MS)
    assert service.answers[token].generation == 2


def test_an_unknown_id_cannot_join(service):
    """After a restart old ids mean nothing; the group is not even made for them."""
    assert service.answers[service.join("from-before")].code == Code.UNKNOWN_MEMBER_ID
    assert service.groups.describe("g") is None
    service.stable({})
    assert service.answers[service.join("from-before")].code == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_outside_the_bounds_is_refused(service, session_ms):
    """The broker bounds how long or short a session may be."""
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
    """Nothing can be agreed on with somebody who offers nothing."""
    assert service.answers[service.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    "how",
    [
        {"protocols": (("roundrobin", b""),)},
        {"protocol_type": "connect"},
    ],
)
def test_a_member_nobody_can_agree_with_is_refused(service, how):
    """Type must be the group's, and one protocol must be shared by all."""
    service.stable({})
    assert service.answers[service.join(**how)].code == Code.INCONSISTENT_GROUP_PROTOCOL


def test_members_vote_for_the_protocol_among_those_all_share(service):
    """The majority's first choice wins; what one member lacks is no choice."""
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
    """Beyond the largest size a join is refused, whoever is in stays in."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=0, members_max=2))
    ids, generation = service.stable({}, {})
    assert service.answers[service.join()].code == Code.GROUP_MAX_SIZE_REACHED
    assert service.members() == ids
    assert service.beat(ids[0], generation) == Code.NONE


def test_a_static_member_comes_back_to_a_full_group():
    """It takes the place it has."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=0, members_max=1))
    service.stable(STATIC)
    assert service.answers[service.join(**STATIC)].code == Code.NONE


def test_ids_given_out_are_bounded_too():
    """Joins that never come back cannot fill memory."""
    service = GroupHarness(GroupSettings(members_max=2))
    codes = [service.answers[service.join()].code for _ in range(3)]
    assert codes == [
        Code.MEMBER_ID_REQUIRED,
        Code.MEMBER_ID_REQUIRED,
        Code.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_retried_join_answers_the_one_it_overtakes(service):
    """A client that sent its join again leaves no request hanging."""
    service.stable({})
    member_id, first = service.enter()
    second = service.join(member_id)
    assert service.answers[first].code == Code.REBALANCE_IN_PROGRESS
    assert second not in service.answers


def test_a_follower_that_rejoins_unchanged_is_told_the_generation_again(service):
    """It missed the answer; nobody else is disturbed."""
    ids, generation = service.stable({}, {})
    answer = service.answers[service.join(ids[1])]
    assert (answer.code, answer.generation, answer.members) == (Code.NONE, generation, ())
    assert service.state == "Stable"


def test_a_member_that_missed_its_join_answer_gets_it_again_before_the_sync(service):
    """In CompletingRebalance an unchanged join is answered from the books, the leader's in full."""
    member_id, _ = service.enter()
    again = service.answers[service.join(member_id)]
    assert (again.generation, len(again.members)) == (1, 1)
    assert service.state == "CompletingRebalance"


def test_a_follower_with_other_topics_starts_a_rebalance(service):
    """Changed metadata is for the leader to see."""
    ids, _ = service.stable({}, {})
    assert service.join(ids[1], protocols=[("range", subscription("u"))]) not in service.answers
    assert service.state == "PreparingRebalance"


def test_a_leader_that_rejoins_starts_a_rebalance(service):
    """It saw something change that is not in its metadata, such as a topic that grew."""
    ids, _ = service.stable({}, {})
    assert service.join(ids[0]) not in service.answers
    assert service.state == "PreparingRebalance"


# --- the first rebalance --------------------------------------------------------------------


def test_the_first_rebalance_waits_for_members_started_together():
    """Within the delay, members gather into one generation; each arrival prolongs it once."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    tokens = []
    for _ in range(3):
        tokens.append(service.enter()[1])
        service.advance(60)
    assert not any(token in service.answers for token in tokens)
    service.advance(200)
    assert {service.answers[token].generation for token in tokens} == {1}


def test_the_first_rebalance_ends_although_members_keep_coming():
    """It never lasts longer than the rebalance timeout."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    token = service.enter(rebalance_timeout_ms=300)[1]
    for _ in range(6):
        assert service.state == "PreparingRebalance" or token in service.answers
        service.advance(50)
        service.enter(rebalance_timeout_ms=300)
    assert token in service.answers


def test_a_member_that_was_just_given_an_id_prolongs_the_first_rebalance():
    """It will be back in a moment; beginning without it would only mean beginning twice."""
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
    """So offsets are safe from deletion while the first members gather."""
    service = GroupHarness(GroupSettings(initial_rebalance_delay_ms=100))
    service.commit()
    service.enter()
    assert service.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)


# --- rebalances -----------------------------------------------------------------------------


def test_heartbeats_tell_of_a_rebalance(service):
    """A member in good standing learns from its heartbeat that it must rejoin."""
    ids, generation = service.stable({})
    service.enter()
    assert service.beat(ids[0], generation) == Code.REBALANCE_IN_PROGRESS
    token = service.join(ids[0])
    assert service.answers[token].generation == generation + 1


def test_who_does_not_rejoin_in_time_is_out(service):
    """After the longest rebalance timeout the rest goes on, under a new leader if need be."""
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
    """Who waits for an assignment of a generation that is over must join again."""
    for _ in range(2):
        service.join(version=0)
    service.join("m1")
    waiting = service.sync("m2", 2)
    assert waiting not in service.answers
    service.join(version=0)
    assert service.answers[waiting].code == Code.REBALANCE_IN_PROGRESS


def test_a_member_that_never_syncs_is_out(service):
    """It has the rebalance timeout to fetch its part; heartbeats do not save it."""
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
    """A follower waiting for the leader's assignment is not left hanging."""
    for _ in range(2):
        service.join(version=0)
    service.join("m1")
    waiting = service.sync("m2", 2)
    service.advance(SESSION_MS)
    assert service.answers[waiting].code == Code.REBALANCE_IN_PROGRESS
    assert service.members() == ["m2"]


def test_the_assignment_goes_to_each_and_nothing_to_who_got_none(service):
    """A member the leader left out has an empty assignment."""
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
    """From SyncGroup 5 on a member says what it believes was chosen."""
    ids, generation = service.stable({})
    assert service.answers[service.sync(ids[0], generation, **says)].code == code


def test_an_old_generation_or_unknown_member_is_refused(service):
    """Heartbeats and syncs must name a member and the present generation."""
    ids, generation = service.stable({})
    assert service.beat(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert service.beat("nobody", generation) == Code.UNKNOWN_MEMBER_ID
    assert service.answers[service.sync(ids[0], 9)].code == Code.ILLEGAL_GENERATION
    assert service.answers[service.sync("nobody", 9)].code == Code.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_is_away_passes_the_lead_to_one_who_is_here(service):
    """It keeps its place, but somebody must make the assignment."""
    short = {"rebalance_timeout_ms": 1_000}
    ids, generation = service.stable({**STATIC, **short}, short)
    token = service.join(ids[1], protocols=[("range", subscription("u"))], **short)
    service.advance(1_000)
    answer = service.answers[token]
    assert (answer.generation, answer.leader) == (generation + 1, ids[1])
    assert [each.member_id for each in answer.members] == ids


def test_a_newcomer_is_not_waited_for_for_ever(service):
    """Its parked join cannot heartbeat; after five minutes it must show itself again."""
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
    """Without heartbeats a member is gone after its session timeout, not before."""
    ids, generation = service.stable({}, {"session_timeout_ms": 2 * SESSION_MS})
    service.advance(SESSION_MS - 1)
    assert service.members() == ids
    service.advance(1)
    assert service.members() == [ids[1]]
    assert service.beat(ids[1], generation) == Code.REBALANCE_IN_PROGRESS


def test_heartbeats_and_commits_keep_a_session_alive(service):
    """Both show that the member lives."""
    ids, generation = service.stable({}, {})
    for _ in range(4):
        service.advance(SESSION_MS - 1)
        assert service.beat(ids[0], generation) == Code.NONE
        assert service.commit(ids[1], generation) == Code.NONE
    assert service.state == "Stable"


def test_a_stable_group_stays_stable_for_as_long_as_it_is_heard_of(service):
    """No deadline of the last rebalance is left behind."""
    ids, generation = service.stable({}, {})
    for _ in range(60):
        service.advance(6_000)
        assert [service.beat(each, generation) for each in ids] == [Code.NONE, Code.NONE]


def test_members_that_vanish_together_cost_one_rebalance(service):
    """Two sessions that end at the same time make the group empty in one step."""
    _, generation = service.stable({}, {})
    service.advance(SESSION_MS + REBALANCE_MS)
    assert service.state == "Empty"
    assert service.groups.describe("g").generation == generation + 1


def test_a_waiting_member_is_not_expected_to_heartbeat(service):
    """Whoever rejoined and waits for the others outlives its session timeout."""
    ids, generation = service.stable({}, {})
    waiting = service.join(ids[1], protocols=[("range", subscription("u"))])
    for _ in range(3):
        service.advance(SESSION_MS - 1)
        service.beat(ids[0], generation)
    assert waiting not in service.answers
    assert service.members() == ids


def test_leaving_starts_a_rebalance_and_the_last_one_empties_the_group(service):
    """A member that leaves is gone at once."""
    ids, _ = service.stable({}, {})
    assert service.leave((ids[0], None)) == [Code.NONE]
    assert (service.state, service.members()) == ("PreparingRebalance", [ids[1]])
    assert service.leave((ids[1], None)) == [Code.NONE]
    assert service.state == "Empty"


def test_several_leave_at_once_each_with_its_own_code(service):
    """From LeaveGroup 3 on one request names many; a stranger does not harm the rest."""
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
    """The second mention is of somebody who is gone."""
    ids, _ = service.stable({})
    assert service.leave((ids[0], None), (ids[0], None)) == [Code.NONE, Code.UNKNOWN_MEMBER_ID]


def test_a_member_that_leaves_while_it_waits_is_answered(service):
    """Its parked join or sync says it is unknown."""
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
    """Its instance is its identity."""
    assert service.answers[service.join(**STATIC)].code == Code.NONE


def test_a_static_member_that_comes_back_disturbs_nobody(service):
    """In a stable group it gets a new id, its old assignment and the present generation."""
    ids, generation = service.stable({}, STATIC)
    answer = service.answers[service.join(**STATIC)]
    assert (answer.code, answer.generation) == (Code.NONE, generation)
    assert answer.member_id not in ids
    assert service.state == "Stable"
    synced = service.sync(answer.member_id, generation, instance_id="i1")
    assert service.answers[synced].assignment == ids[1].encode()


def test_the_former_self_of_a_static_member_is_fenced(service):
    """Whatever it sends under the old id is refused for good."""
    ids, generation = service.stable(STATIC)
    service.join(**STATIC)
    assert service.beat(ids[0], generation, "i1") == Code.FENCED_INSTANCE_ID
    assert service.commit(ids[0], generation, instance_id="i1") == Code.FENCED_INSTANCE_ID
    assert service.answers[service.join(ids[0], **STATIC)].code == Code.FENCED_INSTANCE_ID
    stale = service.sync(ids[0], generation, instance_id="i1")
    assert service.answers[stale].code == Code.FENCED_INSTANCE_ID


def test_a_parked_request_of_the_former_self_is_fenced_at_once(service):
    """Two processes with one instance id: the later one wins, the earlier one is told."""
    service.stable({})
    first = service.join(**STATIC)
    assert first not in service.answers
    second = service.join(**STATIC)
    assert service.answers[first].code == Code.FENCED_INSTANCE_ID
    assert second not in service.answers


def test_a_static_member_with_other_topics_starts_a_rebalance(service):
    """The standing assignment was made for other topics."""
    service.stable({}, STATIC)
    token = service.join(**STATIC, protocols=[("range", subscription("t", "u"))])
    assert token not in service.answers
    assert service.state == "PreparingRebalance"


def test_a_static_leader_that_comes_back_leaves_the_assignment_be(service):
    """From JoinGroup 9 on it is told the members, and to skip the assignment."""
    ids, _ = service.stable(STATIC, {})
    answer = service.answers[service.join(**STATIC)]
    assert answer.leader == answer.member_id
    assert (answer.skip_assignment, len(answer.members)) == (True, 2)
    old = service.answers[service.join(**STATIC, version=8)]
    assert (old.skip_assignment, old.members) == (False, ())
    assert old.leader == answer.member_id != old.member_id  # it must not think it leads
    assert service.members()[1] == ids[1]


def test_a_static_member_that_comes_back_before_the_sync_starts_over(service):
    """The leader would assign to an id that is gone."""
    service.join(version=0)
    token = service.join(**STATIC)
    service.join("m1")
    assert service.answers[token].generation == 2
    service.join(**STATIC)
    assert service.state == "PreparingRebalance"


def test_a_static_member_that_comes_back_before_its_own_sync_must_still_sync(service):
    """The wait for its sync goes over to its new id, and ends when that one syncs."""
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
    """It is not thrown out of a rebalance it misses, only when its session ends."""
    ids, generation = service.stable(
        {"rebalance_timeout_ms": 1_000}, {**STATIC, "rebalance_timeout_ms": 1_000}
    )
    token = service.join(ids[0], rebalance_timeout_ms=1_000)
    service.advance(1_000)
    assert service.answers[token].generation == generation + 1
    assert service.members() == ids


def test_a_rebalance_nobody_joins_waits_for_sessions_to_end(service):
    """Only absent static members: the group goes on when one returns, or ends with the last."""
    ids, _ = service.stable({}, {**STATIC, "rebalance_timeout_ms": 0})
    service.leave((ids[0], None))
    assert service.state == "PreparingRebalance"
    service.advance(SESSION_MS - 1)
    assert service.members() == [ids[1]]
    service.advance(REBALANCE_MS)
    assert service.state == "Empty"


def test_a_pending_id_with_an_instance_is_nobody(service):
    """A static member never gets an id to come back with."""
    pending = service.answers[service.join()].member_id
    assert service.answers[service.join(pending, **STATIC)].code == Code.UNKNOWN_MEMBER_ID


# --- offsets --------------------------------------------------------------------------------


def test_offsets_are_durable_before_the_commit_is_answered(service):
    """The cursor moves first."""
    assert service.commit() == Code.NONE
    kinds = [type(each) for each in service.trace if not isinstance(each, SetTimer)]
    assert kinds == [PersistOffsets, Reply]
    assert service.cursors[T0].offset == 5


def test_a_simple_reader_commits_only_while_the_group_is_empty(service):
    """Without generation there is no telling it from a member that was thrown out."""
    assert service.commit() == Code.NONE
    service.stable({})
    assert service.commit() == Code.UNKNOWN_MEMBER_ID


def test_a_members_commit_must_fit_the_generation(service):
    """A zombie cannot move the group's cursors."""
    ids, generation = service.stable({})
    assert service.commit(ids[0], generation) == Code.NONE
    assert service.commit(ids[0], generation - 1) == Code.ILLEGAL_GENERATION
    assert service.commit("nobody", generation) == Code.UNKNOWN_MEMBER_ID


def test_commits_while_a_rebalance_completes_are_refused(service):
    """The member has its new generation but not its part; during the joins it may still commit."""
    ids, generation = service.stable({}, {})
    service.join(ids[0])
    assert service.commit(ids[1], generation) == Code.NONE
    service.join(ids[1])
    assert service.commit(ids[1], generation + 1) == Code.REBALANCE_IN_PROGRESS
    code = service.groups.check_txn_commit("g", ids[1], generation + 1, None)
    assert code == Code.NONE  # a transaction's offsets are not bound to the state


@pytest.mark.parametrize(
    ("version", "code"), [(8, Code.ILLEGAL_GENERATION), (9, Code.GROUP_ID_NOT_FOUND)]
)
def test_a_members_commit_to_an_absent_group_is_refused(service, version, code):
    """Older clients know no better code."""
    assert service.commit("m", 3, version=version) == code


def test_a_note_that_is_too_long_is_refused_for_its_partition_only():
    """Neighbours in the same commit are kept."""
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
    """If it claims no membership."""
    assert service.groups.check_txn_commit("absent", member_id, generation, None) == code


def test_offsets_of_topics_still_read_cannot_be_deleted(service):
    """Others can."""
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
    """Metadata we cannot read means any topic may be read; another type is left alone."""
    service.stable({"protocols": [("range", b"??")]})
    assert service.delete_offsets(T0).codes == ((T0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)
    other = GroupHarness()
    other.stable({"protocol_type": "connect"})
    assert other.delete_offsets(T0).code == Code.NON_EMPTY_GROUP
    assert GroupHarness().delete_offsets(T0).code == Code.GROUP_ID_NOT_FOUND


# --- deletion, listing, the end -------------------------------------------------------------


def test_only_an_empty_group_can_be_deleted(service):
    """And it takes its cursors with it."""
    assert service.delete() == Code.GROUP_ID_NOT_FOUND
    service.commit()
    ids, _ = service.stable({})
    assert service.delete() == Code.NON_EMPTY_GROUP
    service.leave((ids[0], None))
    assert service.delete() == Code.NONE
    assert service.cursors == {}
    assert service.groups.describe("g") is None


def test_groups_are_listed_by_state(service):
    """State names are Kafka's; case does not matter."""
    service.commit()
    service.stable({})
    service.groups.restore("a", protocol_type="", has_offsets=True, now_ms=0)
    assert [each.group_id for each in service.groups.listing()] == ["a", "g"]
    assert [each.group_id for each in service.groups.listing(["sTable"])] == ["g"]
    assert service.groups.count()["Empty"] == 1


def test_a_description_shows_assignments_only_while_they_stand(service):
    """In a rebalance they may be void."""
    ids, _ = service.stable({})
    (member,) = service.groups.describe("g").members
    assert (member.assignment, member.client_id) == (ids[0].encode(), "client")
    service.enter()
    description = service.groups.describe("g")
    assert description.protocol == ""
    assert {each.assignment for each in description.members} == {b""}


def test_a_group_is_remembered_once_its_type_is_known(service):
    """Before the first generation is announced, and not again for each later one."""
    ids, _ = service.stable({})
    settle(service, [Consumer(service), *[_existing(service, each) for each in ids]])
    assert service.trace.count(PersistGroup("consumer")) == 1
    assert service.remembered == "consumer"


def _existing(service, member_id):
    consumer = Consumer(service)
    consumer.member_id = member_id
    return consumer


def test_an_empty_group_without_offsets_is_forgotten_in_time(service):
    """One that committed is not."""
    ids, _ = service.stable({})
    service.leave((ids[0], None))
    service.advance(QUICK.forget_empty_ms)
    assert service.forgotten
    assert EraseGroup() in service.trace
    kept = GroupHarness()
    kept.commit()
    kept.advance(10 * QUICK.forget_empty_ms)
    assert not kept.forgotten


def test_a_restored_group_is_empty_and_its_old_members_are_strangers():
    """They get UNKNOWN_MEMBER_ID whatever they send, and join again."""
    groups = GroupDirectory(QUICK)
    assert groups.restore("g", protocol_type="consumer", has_offsets=True, now_ms=0) == []
    description = groups.describe("g")
    assert (description.state, description.protocol_type) == ("Empty", "consumer")
    beat = groups.handle("g", Heartbeat(token=1, member_id="m", generation=4), 0)
    assert beat[0].answer.code == Code.UNKNOWN_MEMBER_ID
    left = groups.handle("g", Leave(2, (Leaver("m"),)), 0)
    assert left[0].answer.members[0].code == Code.UNKNOWN_MEMBER_ID


def test_a_group_needs_a_name_to_be_joined():
    """Only offsets may be kept under the empty name, for the oldest clients."""
    service = GroupHarness(group_id="")
    assert service.answers[service.join()].code == Code.INVALID_GROUP_ID
    assert service.beat("m", 1) == Code.INVALID_GROUP_ID
    assert service.commit() == Code.NONE


def test_a_tick_for_an_absent_group_is_nothing():
    """A timer may outlive its group."""
    assert GroupDirectory().handle("g", Tick(), 0) == []


def test_heartbeats_do_not_touch_the_timer(service):
    """An idle member costs no timer churn: the tick finds out how late it really is."""
    ids, generation = service.stable({})
    before = len([each for each in service.trace if isinstance(each, SetTimer)])
    for _ in range(5):
        service.beat(ids[0], generation)
    assert len([each for each in service.trace if isinstance(each, SetTimer)]) == before


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
