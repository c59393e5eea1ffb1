"""The rules of KIP-848 consumer groups; times are in ms from 0."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.decide.groups.consumer.messages import PersistConsumerGroup
from cordwood.decide.groups.messages import GroupSettings, GroupType
from cordwood.decide.instructions import Reply
from cordwood.model import TopicPartition
from support.coordination import (
    GroupHarness,
    TopicsByName,
)
from support.group_clients import NewConsumer

CONSUMER_SESSION_MS = GroupSettings().consumer_session_timeout_ms
OWNED = frozenset({TopicPartition("t", 0), TopicPartition("u", 3)})


@pytest.fixture
def service():
    return GroupHarness(topics=TopicsByName(t=4))


def beat_until_stable(*consumers):
    for _ in range(6):
        for each in consumers:
            assert not each.beat().code
    assert consumers[0].service.state == "Stable"


# --- heartbeats -----------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(service):
    """A join is answered with an epoch, the heartbeat interval and the whole topic."""
    answer = service.consumer_beat("m", 0)
    assert (answer.code, answer.member_id, answer.epoch) == (Code.NONE, "m", 1)
    assert answer.interval_ms == GroupSettings().consumer_heartbeat_interval_ms
    assert answer.assignment == service.topics.all_of("t")
    assert service.state == "Stable"


def test_a_heartbeat_that_changes_nothing_stores_nothing(service):
    """It has no assignment in its reply and writes nothing."""
    service.consumer_beat("m", 0)
    before = len(service.trace)
    answer = service.consumer_beat("m", 1)
    assert (answer.code, answer.epoch, answer.assignment) == (Code.NONE, 1, None)
    assert [type(each) for each in service.trace[before:]] == [Reply]


def test_a_partition_moves_only_after_its_owner_gave_it_up(service):
    """The new member gets nothing until the old one's heartbeat no longer lists the partition."""
    first = NewConsumer(service, "m")
    first.beat()
    second = NewConsumer(service, "n")
    assert second.beat().assignment == frozenset()
    told = service.consumer_beat("m", 1)
    assert (told.epoch, len(told.assignment)) == (1, 2)  # the epoch waits for the acknowledgement
    assert second.beat().assignment is None
    assert service.state == "Reconciling"
    assert service.consumer_beat("m", 1).assignment is None  # it does not say what it owns
    assert service.consumer_beat("m", 1, owned=told.assignment).epoch == 2
    got = second.beat().assignment
    assert len(got) == 2
    assert not got & told.assignment
    assert service.state == "Stable"


def test_a_member_that_does_not_revoke_in_time_is_removed(service):
    """After its rebalance timeout the others get its partitions."""
    service.consumer_beat("m", 0, rebalance_timeout_ms=5_000)
    second = NewConsumer(service, "n")
    second.beat()
    service.consumer_beat("m", 1)
    service.advance(5_000)
    assert service.members() == ["n"]
    second.beat()
    assert second.owned == service.topics.all_of("t")
    assert service.consumer_beat("m", 1).code is Code.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_is_removed_when_its_session_ends(service):
    """A heartbeat starts the session timeout anew."""
    service.consumer_beat("m", 0)
    service.advance(CONSUMER_SESSION_MS - 1)
    service.consumer_beat("m", 1)
    service.advance(CONSUMER_SESSION_MS - 1)
    assert service.members() == ["m"]
    service.advance(1)
    assert service.members() == []
    assert service.state == "Empty"


@pytest.mark.parametrize("epoch", [2, 5, 0x7FFFFFFF])
def test_a_wrong_epoch_is_fenced(service, epoch):
    """An epoch from the future is refused with FENCED_MEMBER_EPOCH and changes nothing."""
    service.consumer_beat("m", 0)
    answer = service.consumer_beat("m", epoch, owned=frozenset())
    assert answer.code is Code.FENCED_MEMBER_EPOCH
    assert service.members() == ["m"]


def test_a_member_that_missed_a_reply_may_repeat_its_heartbeat(service):
    """The previous epoch is accepted from a member that owns no more than it should."""
    service.consumer_beat("m", 0)
    everything = service.topics.all_of("t")
    service.topics.grow("t", 5)
    assert service.consumer_beat("m", 1, owned=everything).epoch == 2  # suppose it is lost
    again = service.consumer_beat("m", 1, owned=everything)
    assert (again.code, again.epoch) == (Code.NONE, 2)
    assert again.assignment == service.topics.all_of("t")
    service.topics.grow("t", 6)
    service.consumer_beat("m", 2)
    assert service.consumer_beat("m", 1, owned=everything).code is Code.FENCED_MEMBER_EPOCH
    assert service.consumer_beat("m", 2).code is Code.FENCED_MEMBER_EPOCH  # says nothing it owns


def test_a_member_that_joins_again_starts_anew(service):
    """Epoch 0 of a known member is a join that owns nothing, and gets the same partitions."""
    service.consumer_beat("m", 0)
    again = service.consumer_beat("m", 0)
    assert again.assignment == service.topics.all_of("t")
    assert service.members() == ["m"]


def test_a_member_that_leaves_frees_its_partitions(service):
    """Epoch -1 removes the member; the next heartbeat of another one gets its partitions."""
    first, second = NewConsumer(service, "m"), NewConsumer(service, "n")
    beat_until_stable(first, second)
    first.leave()
    assert service.state == "Assigning"
    second.beat()
    assert second.owned == service.topics.all_of("t")
    assert service.consumer_beat("m", -1).code is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"epoch": -3}, Code.INVALID_REQUEST),
        ({"epoch": -2}, Code.INVALID_REQUEST),  # not a static member
        ({"instance_id": ""}, Code.INVALID_REQUEST),
        ({"rack_id": ""}, Code.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, Code.INVALID_REQUEST),
        ({"topics": frozenset()}, Code.INVALID_REQUEST),
        ({"owned": None}, Code.INVALID_REQUEST),
        ({"assignor": "random"}, Code.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_a_request_that_is_not_valid_is_refused_and_makes_no_group(service, how, code):
    """Each refusal says what to change, and nothing is stored."""
    how = {"member_id": "m", "epoch": 0, **how}
    answer = service.consumer_beat(how.pop("member_id"), how.pop("epoch"), **how)
    assert answer.code is code
    assert answer.text
    assert service.groups.describe("g") is None
    assert service.stored_group is None


def test_a_group_has_a_most_members():
    """``group.consumer.max.size`` limits the members; a static one returns to its own place."""
    service = GroupHarness(GroupSettings(consumer_members_max=1), topics=TopicsByName(t=1))
    service.consumer_beat("m", 0, instance_id="i")
    assert service.consumer_beat("n", 0).code is Code.GROUP_MAX_SIZE_REACHED
    service.consumer_beat("m", -2, instance_id="i")
    assert service.consumer_beat("n", 0, instance_id="i").code is Code.NONE


def test_members_choose_the_assignor_by_majority(service):
    """``uniform`` is the default; the assignor that most members ask for is used."""
    service.consumer_beat("m", 0)
    assert service.groups.describe_consumer("g").assignor == "uniform"
    service.consumer_beat("n", 0, assignor="range")
    assert service.groups.describe_consumer("g").assignor == "range"


# --- topics ---------------------------------------------------------------------------------


def test_new_partitions_and_topics_are_noticed(service):
    """The next heartbeat after a change begins a new epoch."""
    consumer = NewConsumer(service, "m", topics=frozenset({"t", "later"}))
    consumer.beat()
    assert consumer.owned == service.topics.all_of("t")
    service.topics.create("later", 2)
    service.topics.grow("t", 6)
    consumer.beat()
    assert consumer.owned == service.topics.all_of("t", "later")
    service.topics.delete("later")
    consumer.beat()
    assert consumer.owned == service.topics.all_of("t")


def test_a_recreated_topic_is_another_topic(service):
    """Its partitions have another id, so the old ones are revoked."""
    consumer = NewConsumer(service, "m")
    consumer.beat()
    old = consumer.owned
    service.topics.delete("t")
    service.topics.create("t", 4)
    for _ in range(3):
        consumer.beat()
    assert consumer.owned == service.topics.all_of("t")
    assert not consumer.owned & old


def test_a_pattern_is_resolved_and_followed(service):
    """Topics that match later are assigned with the next heartbeat; names and patterns add up."""
    consumer = NewConsumer(service, "m", pattern="log-", topics=frozenset({"t"}))
    consumer.beat()
    assert consumer.owned == service.topics.all_of("t")
    service.topics.create("log-a", 2)
    consumer.beat()
    assert consumer.owned == service.topics.all_of("t", "log-a")
    epoch = consumer.epoch
    consumer.beat()
    assert consumer.epoch == epoch
    assert service.groups.patterns("g") == {"log-"}
    service.consumer_beat("m", epoch, pattern="")  # no longer
    assert service.groups.patterns("g") == frozenset()


# --- static members -------------------------------------------------------------------------


def test_a_static_member_that_returns_gets_its_partitions_back_without_a_rebalance(service):
    """After epoch -2 its partitions wait for it; the others notice nothing."""
    first = NewConsumer(service, "m", instance_id="i")
    second = NewConsumer(service, "n")
    beat_until_stable(first, second)
    owned, epoch = first.owned, second.epoch
    first.leave(-2)
    second.beat()
    assert (second.epoch, len(second.owned)) == (epoch, 2)
    returned = NewConsumer(service, "m2", instance_id="i")
    assert returned.beat().assignment == owned
    assert returned.epoch == epoch
    assert service.members() == ["n", "m2"]


def test_an_instance_id_in_use_is_refused(service):
    """A second process with the instance id cannot join while the first one is there."""
    service.consumer_beat("m", 0, instance_id="i")
    answer = service.consumer_beat("n", 0, instance_id="i")
    assert answer.code is Code.UNRELEASED_INSTANCE_ID
    assert service.consumer_beat("n", 1, instance_id="i").code is Code.FENCED_INSTANCE_ID
    assert service.consumer_beat("n", -1, instance_id="i").code is Code.FENCED_INSTANCE_ID
    assert service.consumer_beat("n", 1, instance_id="j").code is Code.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed(service):
    """Its session goes on after epoch -2 and ends like any other."""
    service.consumer_beat("m", 0, instance_id="i")
    service.consumer_beat("m", -2, instance_id="i")
    service.advance(CONSUMER_SESSION_MS)
    assert service.members() == []


# --- offsets --------------------------------------------------------------------------------


def test_only_a_member_at_its_epoch_may_commit(service):
    """A stale epoch and an unknown member are refused; older versions of the API too."""
    service.consumer_beat("m", 0)
    assert service.commit("m", 1, version=9) is Code.NONE
    assert service.commit("m", 0, version=9) is Code.STALE_MEMBER_EPOCH
    assert service.commit("n", 1, version=9) is Code.UNKNOWN_MEMBER_ID
    assert service.commit("", -1, version=9) is Code.UNKNOWN_MEMBER_ID
    assert service.commit("m", 1, version=8) is Code.UNSUPPORTED_VERSION
    check = service.groups.check_txn_commit
    assert check("g", "m", 1, None) is Code.NONE
    assert check("g", "m", 3, None) is Code.STALE_MEMBER_EPOCH


def test_offsets_are_fetched_by_members_at_their_epoch_or_by_anybody(service):
    """A request without a member is an operator's."""
    service.consumer_beat("m", 0)
    check = service.groups.check_fetch
    assert check("g", None, -1) is Code.NONE
    assert check("g", "m", 1) is Code.NONE
    assert check("g", "m", 2) is Code.STALE_MEMBER_EPOCH
    assert check("g", "n", 1) is Code.UNKNOWN_MEMBER_ID
    assert check("nobody", "m", 1) is Code.NONE


def test_a_group_with_members_is_not_deleted_and_an_empty_one_is(service):
    """DeleteGroups refuses a group with members, and OffsetDelete its subscribed topics."""
    service.consumer_beat("m", 0)
    service.commit("m", 1, version=9)
    assert service.delete() is Code.NON_EMPTY_GROUP
    service.consumer_beat("m", -1)
    assert service.groups.describe("g").group_type is GroupType.CONSUMER
    assert service.delete() is Code.NONE
    assert service.stored_group is None


# --- what is stored -------------------------------------------------------------------------


def test_members_go_on_after_a_restart(service):
    """Epochs, targets and assignments are restored; a member is neither fenced nor rebalanced."""
    first = NewConsumer(service, "m", instance_id="i")
    second = NewConsumer(service, "n", pattern="t")
    beat_until_stable(first, second)
    before = service.groups.describe_consumer("g")
    service.restart()
    assert service.groups.describe_consumer("g") == before
    for each in (first, second):
        owned, epoch = each.owned, each.epoch
        answer = each.beat()
        assert (answer.code, each.epoch, each.owned) == (Code.NONE, epoch, owned)
    service.advance(CONSUMER_SESSION_MS)
    assert service.members() == []  # sessions began anew


def test_a_revocation_in_progress_goes_on_after_a_restart(service):
    """What was to be revoked is still owned, and its deadline begins anew."""
    first, second = NewConsumer(service, "m"), NewConsumer(service, "n")
    first.beat()
    second.beat()
    told = service.consumer_beat("m", 1)
    service.restart()
    assert second.beat().assignment is None
    assert service.consumer_beat("m", 1, owned=told.assignment).epoch == 2
    assert len(second.beat().assignment) == 2


def test_everything_is_stored_again_after_a_failed_write(service):
    """The next change stores every member, and deletes those that a failed write left."""
    service.consumer_beat("m", 0)
    service.groups.mark_unsaved("g", ["gone"])
    service.consumer_beat("n", 0)
    stored = [each for each in service.trace if isinstance(each, PersistConsumerGroup)][-1]
    assert stored.members.keys() == {"m", "n", "gone"}
    assert stored.members["gone"] is None
