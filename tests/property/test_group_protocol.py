"""For any sequence of group requests, each request gets exactly one answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.groups.messages import GroupSettings, GroupState, JoinReply
from cordwood.decide.instructions import Reply
from cordwood.model import TopicPartition
from support.coordination import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    GroupHarness,
    settle,
    subscription,
)

NEW_MEMBER_MS = GroupSettings().new_member_join_timeout_ms
PROTOCOLS = [
    (("range", subscription("t")),),
    (("range", subscription("t", "u")),),
    (("roundrobin", b"?"), ("range", subscription("t"))),
    (("roundrobin", b"?"),),
]

which = st.integers(0, 5)
moves = st.one_of(
    st.tuples(
        st.just("join"),
        which,
        st.sampled_from(PROTOCOLS),
        st.sampled_from([0, 4, 9]),
        st.sampled_from([0, 1_000, REBALANCE_MS]),
    ),
    st.tuples(st.just("join_new"), st.sampled_from(PROTOCOLS), st.sampled_from([3, 5])),
    st.tuples(st.just("join_static"), st.integers(0, 1), st.sampled_from(PROTOCOLS)),
    st.tuples(st.just("sync"), which, st.sampled_from([-1, 0, 0, 0, 0])),
    st.tuples(st.just("beat"), which, st.sampled_from([-1, 0, 0, 0])),
    st.tuples(st.just("leave"), which, which),
    st.tuples(st.just("commit"), which, st.sampled_from([-1, 0, 0])),
    st.tuples(st.just("delete")),
    st.tuples(st.just("delete_offsets")),
    st.tuples(st.just("advance"), st.sampled_from([0, 50, 100, 1_000, SESSION_MS, REBALANCE_MS])),
)


class Chaos:
    """Sends random requests as current members, former members and unknown members."""

    def __init__(self, delay_ms: int, members_max: int) -> None:
        self.service = GroupHarness(
            GroupSettings(initial_rebalance_delay_ms=delay_ms, members_max=members_max)
        )
        self.ids = ["nobody"]
        self.last_generation = 0

    def move(self, kind, *args) -> None:
        getattr(self, kind)(*args)
        for answer in self.service.answers.values():
            if isinstance(answer, JoinReply) and answer.member_id not in {"", *self.ids}:
                self.ids.append(answer.member_id)
        self.ids += [each for each in self.service.members() if each not in self.ids]
        self.check()

    def someone(self, index: int) -> str:
        """Return a member id, usually a recent one, which is likely to be a current member."""
        return self.ids[-1 - index % len(self.ids)]

    def generation(self, shift: int) -> int:
        description = self.service.groups.describe("g")
        return (description.generation if description else 1) + shift

    def join(self, index, protocols, version, rebalance_ms):
        self.service.join(
            self.someone(index),
            protocols=protocols,
            version=version,
            rebalance_timeout_ms=rebalance_ms,
        )

    def join_new(self, protocols, version):
        self.service.join(protocols=protocols, version=version)

    def join_static(self, instance, protocols):
        self.service.join(instance_id=f"i{instance}", protocols=protocols)

    def sync(self, index, shift):
        assignments = {each: each.encode() for each in self.ids}
        self.service.sync(self.someone(index), self.generation(shift), assignments)

    def beat(self, index, shift):
        self.service.beat(self.someone(index), self.generation(shift))

    def leave(self, first, second):
        self.service.leave((self.someone(first), None), (self.someone(second), None), ("", "i0"))

    def commit(self, index, shift):
        self.service.commit(self.someone(index), self.generation(shift))

    def delete(self):
        self.service.delete()

    def delete_offsets(self):
        self.service.delete_offsets(TopicPartition("t", 0))

    def advance(self, ms):
        self.service.advance(ms)

    def check(self) -> None:
        """Check the invariants that hold after every event."""
        group = self.service.groups._groups.get("g")
        if group is None:
            assert not self.service.waiting
            self.last_generation = 0
            return
        membership = group._membership
        roster, state = membership.roster, membership.state
        members = list(roster)
        ids = [each.member_id for each in members]
        # A group with members has exactly one leader, which is a member.
        assert (roster.leader_id in ids) == bool(ids)
        assert len(ids) == len(set(ids))
        assert not set(ids) & set(roster.pending)
        # Every waiting request belongs to a member, and a timer is set to end the wait.
        joins = [each.join_token for each in members if each.join_token is not None]
        syncs = [each.sync_token for each in members if each.sync_token is not None]
        assert sorted(joins + syncs) == sorted(self.service.waiting)
        assert not self.service.waiting or self.service.timer_ms is not None
        # The group state agrees with its members and their waiting requests.
        assert bool(ids) or state in {GroupState.EMPTY, GroupState.PREPARING_REBALANCE}
        assert state is not GroupState.EMPTY or not ids
        assert not joins or state is GroupState.PREPARING_REBALANCE
        assert not syncs or state is GroupState.COMPLETING_REBALANCE
        if state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            assert all(membership.protocol in dict(each.protocols) for each in members)
        assert membership.generation >= self.last_generation
        self.last_generation = membership.generation


@given(
    st.lists(moves, max_size=60),
    st.sampled_from([0, 100]),
    st.sampled_from([2, 3, 1_000]),
)
def test_any_requests_in_any_order_keep_the_books_and_end_answered(steps, delay_ms, members_max):
    """Invariants hold after each event, and every session expires in the end.

    After that, no request waits and the group has no members.
    """
    chaos = Chaos(delay_ms, members_max)
    for step in steps:
        chaos.move(*step)
    for _ in range(4):
        chaos.move("advance", NEW_MEMBER_MS)
    assert not chaos.service.waiting
    assert chaos.service.members() == []


@given(st.lists(moves, max_size=60))
def test_each_generation_has_one_leader_and_each_member_once(steps):
    """All members of a new generation get the same leader.

    Only the leader gets the list of members.
    """
    chaos = Chaos(0, 1_000)
    for step in steps:
        before = len(chaos.service.trace)
        chaos.move(*step)
        report = [
            each.answer
            for each in chaos.service.trace[before:]
            if isinstance(each, Reply)
            and isinstance(each.answer, JoinReply)
            and not each.answer.code
        ]
        for generation in {each.generation for each in report}:
            same = [each for each in report if each.generation == generation]
            assert len({each.leader for each in same}) == 1
            assert len({each.member_id for each in same}) == len(same)
            assert all(each.member_id == each.leader for each in same if each.members)


@given(st.data())
def test_clients_that_keep_to_the_protocol_get_to_stable(data):
    """After random joins, leaves and crashes, all clients have an assignment."""
    service = GroupHarness(
        GroupSettings(initial_rebalance_delay_ms=data.draw(st.sampled_from([0, 100])))
    )
    count = data.draw(st.integers(1, 4))
    consumers = [_consumer(service, each) for each in range(count)]
    for _ in range(data.draw(st.integers(0, 40))):
        index = data.draw(st.integers(0, count - 1))
        match data.draw(st.sampled_from(["step", "step", "step", "wait", "crash", "leave"])):
            case "step":
                consumers[index].step()
            case "wait":
                service.advance(data.draw(st.sampled_from([100, 3_000, SESSION_MS])))
            case "crash":  # the client comes back as a new process
                consumers[index] = _consumer(service, index)
            case "leave":
                service.leave((consumers[index].member_id, None))
    settle(service, consumers)
    assert sorted(each.member_id for each in consumers) == sorted(service.members())
    for consumer in consumers:
        assert consumer.assignment
    dynamic = [each for each in consumers if "instance_id" not in each.how]
    assert all(each.assignment == each.member_id.encode() for each in dynamic)


def _consumer(service, index) -> Consumer:
    """Create a consumer; those with an odd index are static and keep their instance id."""
    return Consumer(service, **({"instance_id": f"i{index}"} if index % 2 else {}))
