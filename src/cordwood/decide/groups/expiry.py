"""When a group nobody uses any more is forgotten with its offsets. Pure."""

from __future__ import annotations

from cordwood.decide.groups.messages import GroupDescription


def is_expired(
    group: GroupDescription, *, now_ms: int, commit_age_ms: int, retention_ms: int
) -> bool:
    """Whether a group has been empty, and its last commit past, for longer than offsets are kept.

    ``now_ms`` is on the group's own clock; the age of its newest commit is on the wall's.
    """
    if group.empty_since_ms is None:
        return False
    return min(now_ms - group.empty_since_ms, commit_age_ms) >= retention_ms
