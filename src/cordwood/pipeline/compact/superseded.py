"""Find superseded records from key digests, and markers whose transactions have no batches left.

A *range* is a part of the hash space. Its task reads that part of every segment's digest in log
order, one small slice at a time, and finds out for each entry whether a later entry has the same
key. A key never falls into two ranges, so tasks are independent. A task writes what it finds to a
file, segment by segment, for the rewrite tasks. Ranges are sized so that one fits in a task's
memory, however many keys or records there are.

This module reads digests and writes only to the pass's own directory. It does not decide which
records are removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.header_table import Longs
from cordwood.errors import DamagedDigest
from cordwood.log.files.modes import write_shared
from cordwood.pipeline.compact.digests import (
    BUCKET_SHIFT,
    DELTA,
    ENTRY_WORDS,
    EVENT_MARKER,
    Digest,
    Entries,
    Words,
    kernels,
    parse_secret,
    read_digest,
)

ENTRY_BYTES: Final = 16  # memory of a task per superseded entry
SLICE_ENTRIES: Final = 1 << 18  # processed at once: the hash table stays in the CPU cache
RANGES_MAX: Final = 1 << 20
HASH_END: Final = 1 << 32  # ranges divide the highest 32 bits of the hash

Deltas = NDArray[np.uint32]


class SupersededOffsets(NamedTuple):
    """The result of ``find_range`` or ``find_removable_markers``."""

    counts: tuple[int, ...]  # superseded entries, or removable markers, per segment
    keys: int = 0
    entries: int = 0
    newest_sum: int = 0  # checksum over each key's newest entry: (key, offset, is a tombstone)


class RangeTask(NamedTuple):
    """One range of the hash space, over all segments of the pass."""

    low: int
    high: int
    digests: tuple[str, ...]
    topic_id: str
    secret: bytes
    out: str  # empty: only count and sum
    slice_entries: int = SLICE_ENTRIES


def plan_ranges(entries: int, budget_bytes: int) -> list[tuple[int, int]]:
    """Divide the hash space into equal ranges, as few as the memory budget allows."""
    needed = max(1, -(-entries * ENTRY_BYTES // budget_bytes))
    count = min(1 << (needed - 1).bit_length(), RANGES_MAX)
    width = HASH_END // count
    return [(i * width, (i + 1) * width) for i in range(count)]


def find_range(task: RangeTask) -> SupersededOffsets:
    """Find the superseded entries of one range, slice by slice."""
    secret = parse_secret(task.secret)
    digests = [open_digest(path, task.topic_id, secret) for path in task.digests]
    first, end = _buckets(task.low, task.high)
    entries = sum(digest.count(first, end) for digest in digests)
    parts = 1 << (entries // task.slice_entries).bit_length()  # a power of two cuts between buckets
    width = max((task.high - task.low) // parts, 1)
    slices = [
        _find(digests, low, min(low + width, task.high))
        for low in range(task.low, task.high, width)
    ]
    if task.out:
        segments = list(zip(*(one.superseded for one in slices), strict=True))
        counts = [sum(map(len, segment)) for segment in segments]
        deltas = [part for segment in segments for part in segment]
        write_deltas(Path(task.out), np.concatenate(deltas), np.cumsum([0, *counts]))
    return add_up([one.counts for one in slices])


class _Slice(NamedTuple):
    """The result of one slice: superseded offsets by segment, and the counts."""

    superseded: list[Deltas]
    counts: SupersededOffsets


def _find(digests: Sequence[Digest], low: int, high: int) -> _Slice:
    parts = [_slice(digest, low, high) for digest in digests]
    ends = np.cumsum([0, *map(len, parts)])
    entries = np.concatenate(parts)
    superseded = np.zeros(len(entries), np.uint8)
    slots = np.full(1 << max(4, (2 * len(entries)).bit_length()), -1, np.int32)
    keys = kernels.find_superseded(entries, slots, superseded)
    total = np.zeros(1, np.uint64)
    offsets = np.repeat(np.array([digest.base_offset for digest in digests]), np.diff(ends))
    live = kernels.sum_entries(entries, offsets, 1 - superseded, total)
    assert live == keys, "a key has one newest entry"
    rows = np.flatnonzero(superseded)
    bounds = np.searchsorted(rows, ends)
    deltas = entries[rows, ENTRY_WORDS - 1] & np.uint32(DELTA)
    per_segment = tuple(np.diff(bounds).tolist())
    counts = SupersededOffsets(per_segment, int(keys), len(entries), int(total[0]))
    return _Slice(np.split(deltas, bounds[1:-1]), counts)


def _buckets(low: int, high: int) -> tuple[int, int]:
    """Return the half-open range of buckets that hold these hashes."""
    return low >> BUCKET_SHIFT, ((high - 1) >> BUCKET_SHIFT) + 1


def _slice(digest: Digest, low: int, high: int) -> Entries:
    first, end = _buckets(low, high)
    entries = digest.entries(first, end)
    if (first << BUCKET_SHIFT, end << BUCKET_SHIFT) == (low, high):
        return entries
    words = entries[:, 0].astype(np.int64)
    return entries[(words >= low) & (words < high)]


def open_digest(path: str, topic_id: str, secret: Words) -> Digest:
    """Open a digest that must exist; raises ``DamagedDigest`` if it cannot be read."""
    digest = read_digest(Path(path), topic_id, secret)
    if digest is None:
        raise DamagedDigest(f"{path} cannot be read")
    return digest


# --- markers --------------------------------------------------------------------------------


class MarkerTask(NamedTuple):
    """The digests of all segments of the pass, in order."""

    digests: tuple[str, ...]
    topic_id: str
    secret: bytes
    out: str


def find_removable_markers(task: MarkerTask) -> SupersededOffsets:
    """Find the markers whose transactions no longer have a batch in the log."""
    secret = parse_secret(task.secret)
    has_data: set[int] = set()
    removable: list[int] = []
    bounds = [0]
    for path in task.digests:
        for producer_id, delta, kind in open_digest(path, task.topic_id, secret).events.tolist():
            if kind != EVENT_MARKER:
                has_data.add(producer_id)
            elif producer_id in has_data:
                has_data.remove(producer_id)
            else:
                removable.append(delta)
        bounds.append(len(removable))
    write_deltas(Path(task.out), np.array(removable, np.uint32), np.array(bounds))
    return SupersededOffsets(tuple(np.diff(bounds).tolist()))


# --- result files ---------------------------------------------------------------------------


def write_deltas(path: Path, deltas: Deltas, bounds: Longs | Any) -> None:
    """Write offsets relative to segments: ``deltas[bounds[i]:bounds[i + 1]]`` for segment ``i``.

    The complete file is renamed into place, because a task may run twice.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    data = np.asarray(bounds, np.int64).tobytes() + np.asarray(deltas, np.uint32).tobytes()
    write_shared(temporary, data)
    temporary.rename(path)


def read_deltas(paths: Iterable[str], segments: int, segment: int) -> Deltas:
    """Read one segment's relative offsets from all files, sorted."""
    parts: list[Deltas] = [np.empty(0, np.uint32)]
    for path in paths:
        with Path(path).open("rb") as file:
            bounds = np.frombuffer(os.pread(file.fileno(), 16, 8 * segment), np.int64)
            start, end = bounds.tolist()
            position = 8 * (segments + 1) + 4 * start
            data = os.pread(file.fileno(), 4 * (end - start), position)
            assert len(data) == 4 * (end - start), "written whole by this pass"
            parts.append(np.frombuffer(data, np.uint32))
    return np.sort(np.concatenate(parts))


def add_up(parts: Sequence[SupersededOffsets]) -> SupersededOffsets:
    """Add up the results of several ranges."""
    counts = np.array([part.counts for part in parts], np.int64).sum(axis=0)
    return SupersededOffsets(
        tuple(counts.tolist()),
        sum(part.keys for part in parts),
        sum(part.entries for part in parts),
        sum(part.newest_sum for part in parts) % 2**64,
    )
