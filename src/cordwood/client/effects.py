"""The I/O that a flow may request.

A flow is a generator: it yields an effect and is sent the result; if the effect fails, ``OSError``
is raised at the yield. Two drivers run flows: one with blocking sockets, one with asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; it replaces the previous one."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """Write all the data and read what arrives meanwhile; the result is what arrived.

    If awaited, it also waits until something arrives. On time-out it fails if data is still
    unwritten, otherwise the result is empty. Reading while writing prevents a deadlock between two
    peers that both have much to send.
    """

    data: bytes
    is_awaited: bool
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Diagnose:
    """Find out why the first exchange of a connection failed; raises what explains it, if any."""

    error: OSError


Effect = Connect | Transfer | Pause | Diagnose
Flow = Generator[Effect, bytes, T]
