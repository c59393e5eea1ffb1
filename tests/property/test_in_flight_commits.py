"""A partition publishes commits in order, even if they become durable in another order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cordwood.log.write.in_flight import InFlightCommits


@dataclass(eq=False)
class Published:
    """A partition that records the published offsets."""

    ends: list[int] = field(default_factory=list)

    def publish(self, end: Any) -> None:
        self.ends.append(end)


@dataclass(eq=False)
class Written:
    """A commit that ends at an offset."""

    partition: Published
    end: Any
    is_durable: bool = False


@given(
    st.lists(st.integers(0, 2), max_size=30).flatmap(
        lambda owners: st.tuples(st.just(owners), st.permutations(range(len(owners))))
    )
)
def test_publishing_is_in_order_whatever_the_order_of_completion(
    case: tuple[list[int], list[int]],
):
    """A commit is published only after all earlier commits of its partition are durable."""
    owners, completions = case
    partitions = [Published() for _ in range(3)]
    commits = [Written(partitions[owner], end) for end, owner in enumerate(owners)]
    in_flight: InFlightCommits[Written] = InFlightCommits()
    for commit in commits:
        in_flight.add(commit)
    released: list[Written] = []
    for number in completions:
        released += in_flight.complete(commits[number])
        for partition in partitions:
            mine = [each for each in commits if each.partition is partition]
            done = [each for each in mine if each in released]
            assert done == mine[: len(done)]
            assert all(each.is_durable for each in done)
            blocked = mine[len(done) : len(done) + 1]
            assert not any(each.is_durable for each in blocked)
            assert partition.ends == sorted(partition.ends)
            assert partition.ends[-1:] == [each.end for each in done[-1:]]
    assert sorted(released, key=commits.index) == commits


@given(st.integers(1, 6), st.data())
def test_after_a_failure_nothing_in_flight_is_published(count: int, data: st.DataObject):
    """A failed fsync may lose everything past the high watermark, so all commits in flight fail."""
    partition, other = Published(), Published()
    in_flight: InFlightCommits[Written] = InFlightCommits()
    commits = [Written(partition, end) for end in range(count)]
    bystander = Written(other, 7)
    for commit in (*commits, bystander):
        in_flight.add(commit)
    early = data.draw(st.sets(st.integers(1, max(count - 1, 1)), max_size=count - 1))
    for number in early:
        assert in_flight.complete(commits[number]) == []
    assert in_flight.fail(partition) == commits
    assert not partition.ends
    assert in_flight.complete(bystander) == [bystander]
    assert other.ends == [7]
