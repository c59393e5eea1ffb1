"""Moves one member from its current assignment towards its target. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from cordwood.decide.groups.consumer.messages import NOTHING, Assignment, TopicIdPartition


class MemberState(StrEnum):
    """How far a member has come towards its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it has to give up partitions, and has not said that it did
    UNRELEASED = "unreleased"  # partitions of its target still belong to other members


class CurrentAssignment(NamedTuple):
    """What a member may use now, and what it has to give up."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING

    @property
    def owned(self) -> Assignment:
        """What no other member may get."""
        return self.assigned | self.revoking

    def reached(self, epoch: int, state: MemberState, assigned: Assignment) -> CurrentAssignment:
        """This member at another epoch, with nothing to revoke."""
        previous = self.previous_epoch if epoch == self.epoch else self.epoch
        return CurrentAssignment(epoch, previous, state, assigned)


class Target(NamedTuple):
    """Where the member goes: the target assignment and its epoch."""

    epoch: int
    assignment: Assignment


def reconcile(
    current: CurrentAssignment,
    target: Target,
    reported: Assignment | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> CurrentAssignment:
    """The member's next assignment; ``reported`` is what it says it owns, None if it does not say.

    ``is_free`` tells whether no other member owns a partition of the target.
    """
    if current.state is MemberState.STABLE and current.epoch == target.epoch:
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED:
        if _still_owns(reported, current.revoking):
            return current
        epoch += 1
    kept = current.assigned & target.assignment
    revoking = current.assigned - kept
    if revoking and _still_owns(reported, revoking):
        unrevoked = current.reached(epoch, MemberState.UNREVOKED, kept)
        return unrevoked._replace(revoking=revoking)
    missing = target.assignment - kept
    free = frozenset(each for each in missing if is_free(each))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
    return current.reached(target.epoch, state, kept | free)


def _still_owns(reported: Assignment | None, revoking: Assignment) -> bool:
    return reported is None or bool(reported & revoking)
