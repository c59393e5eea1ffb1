"""Missing records: how a directory shows that records are missing, and the remedy. Pure.

Missing is not damaged. Damaged bytes contradict their checksums and may be repaired from a copy.
Missing records leave files that look whole, so the stats must remember that there was more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cordwood.log.format.layout import parse_directory_name
from cordwood.log.format.segment_stats import SegmentStats


def missing_files(
    stats: Mapping[int, SegmentStats], bases: Collection[int], log_start_offset: int
) -> list[SegmentStats]:
    """Segments that held records and whose ``.log`` is gone although they were not dropped.

    Reported are segments after the oldest ``.log`` file, or all from the log start on if no file is
    left. A line of stats is removed before its file is replaced or truncated, and only the oldest
    files are dropped. So such a file was removed by something other than the broker. Whether the
    oldest files were dropped or lost is decided by ``recovery_points``, which knows the log start.
    """
    first = min(bases, default=log_start_offset - 1)
    return [
        line
        for base, line in sorted(stats.items())
        if base not in bases and line.size_bytes > 0 and base > first
    ]


def remedy(directory: str) -> str:
    """The advice to an operator for a partition, given by the name of its directory."""
    return (
        "restore the partition's directory from a copy and restart, or continue without the "
        f"records: `{accept_command(directory)}`"
    )


def accept_command(directory: str) -> str:
    """The command that makes the broker serve a partition without its missing records."""
    tp = parse_directory_name(directory)
    topic, partition = tp or ("TOPIC", "PARTITION")
    return f"cordwood topic accept-loss {topic} {partition}"
