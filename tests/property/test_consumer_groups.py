"""Laws of KIP-848 groups: one owner at a time, everything assigned in the end, epochs only grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_uniform
from cordwood.decide.groups.consumer.messages import TopicIdPartition
from cordwood.decide.groups.messages import GroupSettings, GroupType
from support.coordination import GroupHarness, TopicsByName
from support.group_clients import NewConsumer, OldConsumer

SESSION_MS = GroupSettings().consumer_session_timeout_ms
TOPICS = ("a", "b", "c")

subscriptions = st.dictionaries(
    st.sampled_from("mnopq"), st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1
)
counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})


def partitions(topics, counts):
    return {TopicIdPartition(topic, n) for topic in topics for n in range(counts[topic])}


# --- assignors ------------------------------------------------------------------------------


@given(st.sampled_from(sorted(ASSIGNORS)), subscriptions, counts)
def test_every_subscribed_partition_is_assigned_once(name, topics_of, counts):
    """Each partition of a subscribed topic goes to one member, and it subscribes to the topic."""
    members = {each: Subscriber(topics, frozenset()) for each, topics in topics_of.items()}
    given_to = ASSIGNORS[name](members, counts)
    assert given_to.keys() == members.keys()
    told = [(each, partition) for each in given_to for partition in given_to[each]]
    assert {partition for _, partition in told} == partitions(
        set().union(*topics_of.values()), counts
    )
    assert len(told) == len({partition for _, partition in told})
    assert all(partition.topic_id in topics_of[each] for each, partition in told)


@given(subscriptions, counts)
def test_uniform_leaves_no_single_move_that_would_balance_better(topics_of, counts):
    """A member has at most one partition more than any other that could take one from it."""
    members = {each: Subscriber(topics, frozenset()) for each, topics in topics_of.items()}
    given_to = assign_uniform(members, counts)
    for busy, owned in given_to.items():
        for idle, less in given_to.items():
            could_take = [each for each in owned if each.topic_id in topics_of[idle]]
            assert len(owned) - len(less) <= 1 or not could_take, (busy, idle)


@given(subscriptions, counts, st.data())
def test_uniform_moves_nothing_when_nothing_changed(topics_of, counts, data):
    """An assignment is the result of itself; a fresh member takes only what it has to get."""
    members = {each: Subscriber(topics, frozenset()) for each, topics in topics_of.items()}
    before = assign_uniform(members, counts)
    again = {each: Subscriber(topics_of[each], before[each]) for each in members}
    assert assign_uniform(again, counts) == before
    everything = frozenset(TOPICS)
    alike = {each: Subscriber(everything, frozenset()) for each in members}
    before = assign_uniform(alike, counts)
    joined = {each: Subscriber(everything, before[each]) for each in members}
    joined["new"] = Subscriber(everything, frozenset())
    after = assign_uniform(joined, counts)
    moved = sum(len(before[each] - after[each]) for each in members)
    assert moved == len(after["new"])


@given(st.integers(1, 6), counts)
def test_range_gives_equal_partitions_of_equal_topics_to_one_member(size, counts):
    """Topics of the same size are cut at the same partitions."""
    members = {f"m{n}": Subscriber(frozenset(TOPICS), frozenset()) for n in range(size)}
    given_to = ASSIGNORS["range"](members, dict.fromkeys(TOPICS, 6))
    for owned in given_to.values():
        by_topic = [{n for topic, n in owned if topic == each} for each in TOPICS]
        assert by_topic[0] == by_topic[1] == by_topic[2]
        assert by_topic[0] == set(
            range(min(by_topic[0], default=0), max(by_topic[0], default=-1) + 1)
        )


# --- the state machine ----------------------------------------------------------------------


class Crowd:
    """Clients of both protocols in one group, which join, leave, die and come back."""

    def __init__(self, names, classic=()) -> None:
        self.service = GroupHarness(
            GroupSettings(initial_rebalance_delay_ms=0), topics=TopicsByName(t=4, u=3, v=2)
        )
        self.names = names
        self.consumers = {name: self.new(name) for name in names}
        self.classic = {name: OldConsumer(self.service, "t") for name in classic}
        self.epochs: tuple[int, int] = (0, 0)

    def new(self, name):
        how = [
            {"topics": frozenset({"t"})},
            {"topics": frozenset({"t", "u"})},
            {"pattern": "u"},
            {"topics": frozenset({"t"}), "instance_id": name},
        ][self.names.index(name) % 4]
        return NewConsumer(self.service, f"{name}-{self.service.token()}", **how)

    def check(self) -> None:
        """No partition has two owners; epochs only grow while the group is of this type."""
        owned = [
            (topic, number) for each in self.consumers.values() for topic, number in each.owned
        ]
        for each in self.classic.values():
            owned += [(self.service.topics.find(t).topic_id, n) for t, n in each.owned]
        assert len(owned) == len(set(owned)), sorted(owned)
        group = self.service.groups.describe_consumer("g")
        if group is None:
            self.epochs = (0, 0)
            return
        assert group.epoch >= group.assignment_epoch
        assert (group.epoch, group.assignment_epoch) >= self.epochs
        assert all(each.epoch <= group.assignment_epoch for each in group.members)
        self.epochs = (group.epoch, group.assignment_epoch)

    def act(self, action, name) -> None:
        consumer = self.consumers[name]
        match action:
            case "beat":
                consumer.beat()
            case "leave":
                consumer.leave()
            case "pause":
                consumer.leave(-2 if "instance_id" in consumer.how else -1)
            case "die":  # its session ends before anybody else gets its partitions
                self.consumers[name] = self.new(name)
                self.forget(consumer)
            case "grow":
                self.service.topics.grow("t", self.service.topics.find("t").partitions + 1)
            case "wait":
                self.service.advance(1_000)
            case "restart":
                if not self.service.waiting:
                    self.service.restart()

    def forget(self, consumer) -> None:
        """Let time pass until the session of a dead client has ended; the others stay alive."""
        for _ in range(5):
            self.service.advance(SESSION_MS // 4)
            self.beat_all()

    def beat_all(self) -> None:
        for each in list(self.consumers.values()):
            if each.epoch > 0:
                each.beat()
        for each in self.classic.values():
            each.step()

    def settle(self) -> None:
        for _ in range(60):
            for each in self.consumers.values():
                each.beat()
            for each in self.classic.values():
                for _ in range(3):
                    each.step()
            self.check()
            self.service.advance(100)


actions = st.lists(
    st.tuples(
        st.sampled_from(["beat"] * 6 + ["leave", "pause", "die", "grow", "wait", "restart"]),
        st.integers(0, 4),
    ),
    max_size=50,
)


@given(st.integers(1, 5), actions)
def test_partitions_have_one_owner_and_all_are_assigned_in_the_end(count, steps):
    """Whatever members do, no partition has two owners, and finally every partition has one."""
    crowd = Crowd([f"c{number}" for number in range(count)])
    for action, index in steps:
        crowd.act(action, crowd.names[index % count])
        crowd.check()
    crowd.settle()
    group = crowd.service.groups.describe_consumer("g")
    assert group.state == "Stable"
    wanted = {"t"} if count <= 1 else {"t", "u"}
    owned = frozenset().union(*(each.owned for each in crowd.consumers.values()))
    assert owned == crowd.service.topics.all_of(*wanted)
    assert {each.member_id: each.assigned for each in group.members} == {
        each.member_id: each.owned for each in crowd.consumers.values()
    }


@given(st.integers(0, 3), actions)
def test_a_migrating_group_never_gives_a_partition_to_two_members(count, steps):
    """Members of both protocols share partitions, and the group becomes classic again."""
    names = [f"c{number}" for number in range(count + 1)]
    crowd = Crowd(names, classic=("old1", "old2"))
    crowd.consumers = {name: NewConsumer(crowd.service, name) for name in names}
    crowd.new = lambda name: NewConsumer(crowd.service, f"{name}-{crowd.service.token()}")
    for _ in range(20):
        for each in crowd.classic.values():
            each.step()
    for action, index in steps:
        if action != "restart":  # classic groups do not survive one
            crowd.act(action, names[index % len(names)])
        for each in crowd.classic.values():
            each.step()
        crowd.check()
    crowd.settle()
    assert crowd.service.groups.describe("g").group_type is GroupType.CONSUMER
    assert crowd.service.state == "Stable"
    count_owned = [len(each.owned) for each in (*crowd.consumers.values(), *crowd.classic.values())]
    assert sum(count_owned) == crowd.service.topics.find("t").partitions
    assert max(count_owned) - min(count_owned) <= 1
    for each in crowd.consumers.values():
        each.leave()
    crowd.consumers = {}
    crowd.settle()
    assert crowd.service.groups.describe("g").group_type is GroupType.CLASSIC
    assert crowd.service.state == "Stable"
    assert sum(len(each.owned) for each in crowd.classic.values()) == sum(count_owned)
