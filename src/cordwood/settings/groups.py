"""Checks of the settings of consumer groups (KIP-848). Pure."""

from __future__ import annotations

from typing import Final, Protocol

ASSIGNOR_NAMES: Final = ("uniform", "range")


class GroupTimeouts(Protocol):
    """The settings of which each timeout has its bounds."""

    @property
    def group_consumer_min_session_timeout_ms(self) -> int:
        """The lower bound of the session timeout."""

    @property
    def group_consumer_session_timeout_ms(self) -> int:
        """The session timeout."""

    @property
    def group_consumer_max_session_timeout_ms(self) -> int:
        """The upper bound of the session timeout."""

    @property
    def group_consumer_min_heartbeat_interval_ms(self) -> int:
        """The lower bound of the heartbeat interval."""

    @property
    def group_consumer_heartbeat_interval_ms(self) -> int:
        """The heartbeat interval."""

    @property
    def group_consumer_max_heartbeat_interval_ms(self) -> int:
        """The upper bound of the heartbeat interval."""


def check_assignors(names: str) -> str:
    """Why this is not a list of assignors; empty if it is one."""
    given = names.split(",")
    if set(given) <= set(ASSIGNOR_NAMES) and len(set(given)) == len(given):
        return ""
    return f"{names!r} is not a list of {' and '.join(ASSIGNOR_NAMES)}, such as uniform,range"


def find_timeout_conflict(config: GroupTimeouts) -> str:
    """Which timeout of consumer groups is outside its bounds; empty if none is."""
    for name, low, value, high in (
        (
            "session.timeout.ms",
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        (
            "heartbeat.interval.ms",
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
    ):
        if not low <= value <= high:
            return (
                f"group.consumer.{name}: {value} is not between group.consumer.min.{name} ({low}) "
                f"and group.consumer.max.{name} ({high}); change one of the three"
            )
    return ""
