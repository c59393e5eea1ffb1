"""Decides when an unused group is forgotten together with its offsets. Pure."""

from __future__ import annotations

from cordwood.decide.groups.messages import GroupDescription


def is_expired(
    group: GroupDescription, *, now_ms: int, commit_age_ms: int, retention_ms: int
) -> bool:
    """Whether the group has been empty, and without a commit, for at least ``retention_ms``.

    ``now_ms`` is on the group's own clock; ``commit_age_ms`` is measured on the wall clock.
    """
    if group.empty_since_ms is None:
        return False
    return min(now_ms - group.empty_since_ms, commit_age_ms) >= retention_ms
