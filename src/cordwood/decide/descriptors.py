"""Divides the process's file descriptor limit between connections and the log.

Listeners, metadata and short-lived files come first. Connections and the log divide the rest into
fixed shares: partitions never take a descriptor reserved for a connection, nor the reverse, however
many there are. The log works with any share because it closes the least recently used files; a
larger share only saves it from reopening files.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LIMIT_MIN: Final = 128  # a broker cannot serve below this
RESERVED: Final = 64  # listeners, metadata, event loop, staging, short-lived files
TAIL_DESCRIPTORS: Final = 2  # per partition open for appends: segment and published offsets
READERS_MAX: Final = 4096
TAILS_MAX: Final = 8192
UNLIMITED: Final = 1 << 20  # for a process without a limit


class DescriptorPlan(NamedTuple):
    """The maximum number of descriptors for each use."""

    limit: int  # of the process
    connections: int
    readers: int  # segment files open for reads
    tails: int  # partitions open for appends


def plan_descriptors(limit: int, connections_wanted: int) -> DescriptorPlan:
    """Divide ``limit`` descriptors, which must be at least ``LIMIT_MIN``.

    The log gets a quarter, or everything that connections do not need if that is more.
    """
    assert limit >= LIMIT_MIN
    free = limit - RESERVED
    log = max(free // 4, free - connections_wanted)
    readers = min(log // 2, READERS_MAX)
    tails = min((log - readers) // TAIL_DESCRIPTORS, TAILS_MAX)
    connections = free - readers - tails * TAIL_DESCRIPTORS
    return DescriptorPlan(limit, connections, readers, tails)
