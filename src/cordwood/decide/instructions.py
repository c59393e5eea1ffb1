"""What the state machines of groups and transactions share: tokens, ticks, replies and timers.

A state machine takes events and returns instructions. A ``token`` identifies a waiting request and
is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from cordwood.codes import Code

Token = Hashable


@dataclass(frozen=True, slots=True)
class Tick:
    """An event: check the deadlines; early or extra ticks are harmless."""


@dataclass(frozen=True, slots=True)
class CodeReply:
    """The reply to a request that succeeds or fails as a whole and returns nothing else."""

    code: Code = Code.NONE


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that the token identifies; its event defines the type of the answer."""

    token: Token
    answer: Any


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send a ``Tick`` at this time; replaces the previous timer."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The group or id no longer exists; cancel its timer."""
