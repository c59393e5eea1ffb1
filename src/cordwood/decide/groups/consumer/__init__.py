"""Kafka's consumer groups of KIP-848: the broker assigns partitions, member by member.

``membership`` answers heartbeats, ``classic_members`` answers the classic requests of members that
have not migrated, ``members`` keeps the members and who owns which partition, ``reconciliation``
moves one member towards its target, ``assignors`` compute the targets, and ``record`` is what
survives a restart.

Three epochs grow and never shrink::

    group epoch        the members, their subscriptions or the subscribed topics changed
    assignment epoch   the group epoch for which the target assignment was computed
    member epoch       the assignment epoch that the member has reached

A member whose epoch differs from what it says is fenced. A partition moves in three steps: its
owner is told to revoke it, the owner's next heartbeat no longer lists it, and only then the
partition is given to its new owner. So no partition has two owners at any time.

The states of a group are computed, not stored: Empty (no members), Assigning (the target is older
than the group epoch), Reconciling (a member has not reached its target), Stable.

Everything here that a reply reports is stored before: epochs, targets and current assignments. A
restart restores them and starts every session anew, so members go on without being fenced.
"""
