"""Offset ranges → tasks: one split per run of segments, cut further when asked.

A split is a run of offsets of one partition. Small neighbouring segments are read by one task, big
ones are cut at index entries so that every core has work; order within a partition is kept by
offset, never by task. A split names no file: files may be swapped before the task runs.

Tasks are few and of a size: each costs Spark some 70 ms of a core, Java and Python together, before
it reads anything. How many cores a cluster has is not told to a Python source: the option
``parallelism`` says it, and cordwood's own jobs do; else this machine's are counted.

Pure: where cuts are possible comes in as a value.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from cordwood.config import MIB
from cordwood.pipeline.source.offsets import Range

SPLIT_BYTES_MIN: Final = 16 * MIB  # below, starting a task costs more than it reads
SPLIT_BYTES_MAX: Final = 128 * MIB  # what Spark's file sources aim at
CORES_HERE: Final = os.cpu_count() or 1
_PIECES_PER_SPLIT: Final = 8  # how finely segments are cut, so that splits come out of a size


class SplitPiece(NamedTuple):
    """A stretch of a range that one task can read cheaply: a segment, or part of one."""

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
    """The tasks: ``pieces_of(range, bytes)`` says where a range may be cut, at about that size."""
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
    """How many tasks of a size: full rounds of all cores, unless there is too little to share."""
    fewest = -(-total_bytes // SPLIT_BYTES_MAX)
    most = max(1, total_bytes // SPLIT_BYTES_MIN)
    rounds = max(1, -(-fewest // cores))
    return min(rounds * cores, most)


def _gather(
    ranges: Iterable[Range],
    pieces_of: Callable[[Range, int], Sequence[SplitPiece]],
    split_bytes: int,
) -> list[Range]:
    """Neighbouring pieces joined: cut where it is nearest to every ``split_bytes``."""
    splits: list[Range] = []
    for whole in ranges:
        start, passed_bytes, due_bytes = whole.start, 0, split_bytes
        reached = whole.start
        for piece in pieces_of(whole, max(1, split_bytes // _PIECES_PER_SPLIT)):
            if reached > start and passed_bytes + piece.size_bytes // 2 > due_bytes:
                splits.append(Range(whole.tp, start, reached))
                start, due_bytes = reached, (passed_bytes // split_bytes + 1) * split_bytes
                if due_bytes - passed_bytes < split_bytes // 2:
                    due_bytes += split_bytes  # cut a little before the mark: on to the next
            passed_bytes += piece.size_bytes
            reached = piece.end
        assert reached == whole.end, "pieces cover their range"
        splits.append(Range(whole.tp, start, reached))
    return splits


def _halve(splits: list[Range], count: int) -> list[Range]:
    """Cut the longest split in two until there are ``count``, or only single offsets are left."""
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
