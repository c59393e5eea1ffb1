"""Records that must be there and are not: how a directory shows it, and what to do about it. Pure.

Missing is not damaged. Damaged bytes contradict their checksums and may be repaired from a copy;
missing ones leave files that look whole, so somebody has to remember that there was more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cordwood.log.format.layout import parse_directory_name
from cordwood.log.format.segment_stats import SegmentStats


def missing_files(
    facts: Mapping[int, SegmentStats], bases: Collection[int], log_start_offset: int
) -> list[SegmentStats]:
    """Segments that held records and whose ``.log`` is not there, though an older one is, or none.

    A line is taken out before its file is replaced or cut, and only the oldest files are dropped;
    so such a file was removed by somebody else. Whether the oldest ones were dropped or removed is
    for ``recovery_points`` to say, which knows the log start.
    """
    first = min(bases, default=log_start_offset - 1)
    return [
        line
        for base, line in sorted(facts.items())
        if base not in bases and line.size_bytes > 0 and base > first
    ]


def remedy(directory: str) -> str:
    """What an operator can do for a partition, given by its directory's name."""
    return (
        "restore the partition's directory from a copy and restart, or go on without them: "
        f"`{accept_command(directory)}`"
    )


def accept_command(directory: str) -> str:
    """The command that serves a partition without the records that are gone."""
    tp = parse_directory_name(directory)
    topic, partition = tp or ("TOPIC", "PARTITION")
    return f"cordwood topic accept-loss {topic} {partition}"
