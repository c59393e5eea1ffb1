"""What a request to alter settings asks for: which settings are set, and which are reset. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cordwood.errors import InvalidConfig, RequestError
from cordwood.protocol.kafka.messages.configs import AlterConfig, ConfigChange

SET, DELETE, APPEND, SUBTRACT = range(4)
_OPERATIONS: Final = (SET, DELETE, APPEND, SUBTRACT)

Changes = dict[str, str | None]  # dotted name → text; None resets it to the default
Lists = Callable[[str], frozenset[str] | None]  # the words of a list; None if it is none
Plan = Callable[[Mapping[str, str], Lists], Changes]
"""Returns the changes, given what the resource sets itself and the values of its lists."""


def plan_replacement(asked: Sequence[AlterConfig], own: Mapping[str, str], _: Lists) -> Changes:
    """Return the changes that leave exactly these settings set."""
    return dict.fromkeys(own) | {each.name: each.value for each in asked}


def plan_changes(asked: Sequence[ConfigChange], _: Mapping[str, str], lists: Lists) -> Changes:
    """Resolve incremental changes; raises ``InvalidConfig`` or ``RequestError``."""
    return {each.name: _plan_change(each, lists) for each in asked}


def _plan_change(change: ConfigChange, lists: Lists) -> str | None:
    name, operation, value = change
    if operation == DELETE:
        return None
    if value is None:
        raise RequestError(f"{name}: only a deletion (operation {DELETE}) may omit the value")
    if operation == SET:
        return value
    if operation not in _OPERATIONS:
        raise RequestError(f"{name}: unknown operation {operation}; use 0 to 3")
    now = lists(name)
    if now is None:
        raise InvalidConfig(
            f"{name} is not a list, so it can only be set, not appended to or subtracted from"
        )
    words = {word.strip() for word in value.split(",")}
    return ",".join(sorted(now | words if operation == APPEND else now - words))
