"""How the descriptors a process may open are shared out, before anybody takes one.

Listeners, metadata and files opened for a moment come first. What is left goes to connections and
to the log, each within its own share: however many partitions there are, they never take a
descriptor a connection was promised, nor the reverse. The log lives with any share, as it closes
what was not used for longest; more of them only spare it opening files again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LIMIT_MIN: Final = 128  # below this a broker cannot serve
RESERVED: Final = 64  # listeners, metadata, event loop, staging, files opened for a moment
TAIL_DESCRIPTORS: Final = 2  # of a partition open for appends: its segment and its marks
READERS_MAX: Final = 4096
TAILS_MAX: Final = 8192
UNLIMITED: Final = 1 << 20  # of a process without a limit


class DescriptorPlan(NamedTuple):
    """Who may hold how many."""

    limit: int  # of the process
    connections: int
    readers: int  # segment files open for reads
    tails: int  # partitions open for appends


def plan_descriptors(limit: int, connections_wanted: int) -> DescriptorPlan:
    """Share ``limit`` descriptors, at least ``LIMIT_MIN``, out.

    The log has a quarter, and what connections do not want.
    """
    assert limit >= LIMIT_MIN
    free = limit - RESERVED
    log = max(free // 4, free - connections_wanted)
    readers = min(log // 2, READERS_MAX)
    tails = min((log - readers) // TAIL_DESCRIPTORS, TAILS_MAX)
    connections = free - readers - tails * TAIL_DESCRIPTORS
    return DescriptorPlan(limit, connections, readers, tails)
