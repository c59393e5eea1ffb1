"""Divide offset ranges into splits, one per Spark task.

A split is a range of offsets of one partition. One task reads several small neighbouring segments;
large segments are cut at index entries so that every core has work. Offsets, not tasks, give the
order within a partition. A split names no file, because files may be swapped before the task runs.

Splits are few and of similar size: each task costs Spark about 70 ms of CPU time, Java and Python
together, before it reads anything. Spark does not tell a Python data source how many cores the
cluster has. The option ``parallelism`` states it, and cordwood's own jobs set it; the default is
the number of cores of this machine.

Pure: the possible cuts are passed in.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from cordwood.config import MIB
from cordwood.pipeline.source.offsets import Range

SPLIT_BYTES_MIN: Final = 16 * MIB  # below this, starting a task costs more than reading
SPLIT_BYTES_MAX: Final = 128 * MIB  # the target of Spark's file sources
CORES_HERE: Final = os.cpu_count() or 1
_PIECES_PER_SPLIT: Final = 8  # finer cuts make splits more equal in size


class SplitPiece(NamedTuple):
    """The smallest part of a range that planning moves between tasks: a segment or part of one."""

    start: int
    end: int
    size_bytes: int


def plan_splits(
    ranges: Iterable[Range],
    pieces_of: Callable[[Range, int], Sequence[SplitPiece]],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    split_bytes: int | None = None,
    cores: int = CORES_HERE,
) -> list[Range]:
    """Plan the splits; ``pieces_of(range, bytes)`` cuts a range into pieces of about that size."""
    todo = list(ranges)
    total_bytes = sum(p.size_bytes for each in todo for p in pieces_of(each, SPLIT_BYTES_MAX))
    if split_bytes is None:
        split_bytes = -(-total_bytes // plan_count(total_bytes, cores))
    splits = _gather(todo, pieces_of, split_bytes)
    if min_partitions is not None and len(splits) < min_partitions:
        splits = _gather(todo, pieces_of, max(1, total_bytes // min_partitions))
        splits = _halve(splits, min_partitions)
    if max_records is not None:
        splits = [part for split in splits for part in _cut_evenly(split, max_records)]
    return splits


def plan_count(total_bytes: int, cores: int) -> int:
    """The number of equal tasks: a multiple of ``cores``, or fewer if there is too little data."""
    fewest = -(-total_bytes // SPLIT_BYTES_MAX)
    most = max(1, total_bytes // SPLIT_BYTES_MIN)
    rounds = max(1, -(-fewest // cores))
    return min(rounds * cores, most)


def _gather(
    ranges: Iterable[Range],
    pieces_of: Callable[[Range, int], Sequence[SplitPiece]],
    split_bytes: int,
) -> list[Range]:
    """Join neighbouring pieces, cutting as near as possible to each multiple of ``split_bytes``."""
    splits: list[Range] = []
    for whole in ranges:
        start, passed_bytes, due_bytes = whole.start, 0, split_bytes
        reached = whole.start
        for piece in pieces_of(whole, max(1, split_bytes // _PIECES_PER_SPLIT)):
            if reached > start and passed_bytes + piece.size_bytes // 2 > due_bytes:
                splits.append(Range(whole.tp, start, reached))
                start, due_bytes = reached, (passed_bytes // split_bytes + 1) * split_bytes
                if due_bytes - passed_bytes < split_bytes // 2:
                    due_bytes += split_bytes  # this cut came just before a multiple: skip that one
            passed_bytes += piece.size_bytes
            reached = piece.end
        assert reached == whole.end, "pieces cover their range"
        splits.append(Range(whole.tp, start, reached))
    return splits


def _halve(splits: list[Range], count: int) -> list[Range]:
    """Halve the longest split until there are ``count`` splits or only single offsets are left."""
    while splits and len(splits) < count:
        longest = max(range(len(splits)), key=lambda index: splits[index].size)
        tp, start, end = splits[longest]
        if end - start < 2:
            break
        middle = (start + end) // 2
        splits[longest : longest + 1] = [Range(tp, start, middle), Range(tp, middle, end)]
    return splits


def _cut_evenly(split: Range, max_records: int) -> list[Range]:
    parts = -(-split.size // max_records)
    cuts = [split.start + split.size * part // parts for part in range(parts + 1)]
    return [Range(split.tp, start, end) for start, end in itertools.pairwise(cuts)]
