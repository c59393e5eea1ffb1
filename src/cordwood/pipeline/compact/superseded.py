"""Which records are superseded, found bucket by bucket from digests; which markers have no use.

A *range* is a slice of the hash space. Its task reads that slice of every segment's digest, in the
log's order and a little at a time, and finds for each entry whether a later one has its key: the
same key never falls into two ranges, so no task needs to know of another. What it finds goes to a
file, segment by segment, for the tasks that rewrite. Ranges are cut so that one fits in a task's
memory however many keys or records there are.

Reads digests, writes under the pass's own directory, decides nothing but "a later one exists".
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

ENTRY_BYTES: Final = 16  # what an entry costs a task that notes it as superseded
SLICE_ENTRIES: Final = 1 << 18  # gone through at once: their slots stay in a processor's cache
RANGES_MAX: Final = 1 << 20
HASH_END: Final = 1 << 32  # ranges cut the highest 32 bits of the hash

Deltas = NDArray[np.uint32]


class SupersededOffsets(NamedTuple):
    """What a range, or the judge of markers, found."""

    counts: tuple[int, ...]  # superseded entries, or markers without use, per segment
    keys: int = 0
    entries: int = 0
    newest_sum: int = 0  # over the newest entry of each key: (key, offset, is a tombstone)


class RangeTask(NamedTuple):
    """One slice of the hash space over all segments of the pass."""

    low: int
    high: int
    digests: tuple[str, ...]
    topic_id: str
    secret: bytes
    out: str  # empty: only count and sum


def plan_ranges(entries: int, budget_bytes: int) -> list[tuple[int, int]]:
    """Parts of the hash space, equal and as few as fit the budget."""
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
    parts = 1 << (entries // SLICE_ENTRIES).bit_length()  # a power of two cuts between buckets
    width = max((task.high - task.low) // parts, 1)
    slices = [
        _find(digests, low, min(low + width, task.high))
        for low in range(task.low, task.high, width)
    ]
    if task.out:
        segments = list(zip(*(one.dead for one in slices), strict=True))
        counts = [sum(map(len, segment)) for segment in segments]
        deltas = [part for segment in segments for part in segment]
        write_deltas(Path(task.out), np.concatenate(deltas), np.cumsum([0, *counts]))
    return add_up([one.found for one in slices])


class _Slice(NamedTuple):
    """What one slice gave: the superseded, segment by segment, and their number."""

    dead: list[Deltas]
    found: SupersededOffsets


def _find(digests: Sequence[Digest], low: int, high: int) -> _Slice:
    parts = [_slice(digest, low, high) for digest in digests]
    ends = np.cumsum([0, *map(len, parts)])
    entries = np.concatenate(parts)
    dead = np.zeros(len(entries), np.uint8)
    slots = np.full(1 << max(4, (2 * len(entries)).bit_length()), -1, np.int32)
    keys = kernels().find_superseded(entries, slots, dead)
    total = np.zeros(1, np.uint64)
    offsets = np.repeat(np.array([digest.base_offset for digest in digests]), np.diff(ends))
    live = kernels().sum_entries(entries, offsets, 1 - dead, total)
    assert live == keys, "a key has one newest entry"
    rows = np.flatnonzero(dead)
    bounds = np.searchsorted(rows, ends)
    deltas = entries[rows, ENTRY_WORDS - 1] & np.uint32(DELTA)
    found = SupersededOffsets(
        tuple(np.diff(bounds).tolist()), int(keys), len(entries), int(total[0])
    )
    return _Slice(np.split(deltas, bounds[1:-1]), found)


def _buckets(low: int, high: int) -> tuple[int, int]:
    """The buckets that hold these hashes."""
    return low >> BUCKET_SHIFT, ((high - 1) >> BUCKET_SHIFT) + 1


def _slice(digest: Digest, low: int, high: int) -> Entries:
    first, end = _buckets(low, high)
    entries = digest.entries(first, end)
    if (first << BUCKET_SHIFT, end << BUCKET_SHIFT) == (low, high):
        return entries
    words = entries[:, 0].astype(np.int64)
    return entries[(words >= low) & (words < high)]


def open_digest(path: str, topic_id: str, secret: Words) -> Digest:
    """A digest this pass relies on; raises ``DamagedDigest``."""
    digest = read_digest(Path(path), topic_id, secret)
    if digest is None:
        raise DamagedDigest(f"{path} cannot be read")
    return digest


# --- markers --------------------------------------------------------------------------------


class MarkerTask(NamedTuple):
    """All segments of the pass, in order."""

    digests: tuple[str, ...]
    topic_id: str
    secret: bytes
    out: str


def judge_markers(task: MarkerTask) -> SupersededOffsets:
    """Find the markers whose transactions have no batch in the log any more."""
    secret = parse_secret(task.secret)
    has_data: set[int] = set()
    spent: list[int] = []
    bounds = [0]
    for path in task.digests:
        for producer_id, delta, kind in open_digest(path, task.topic_id, secret).events.tolist():
            if kind != EVENT_MARKER:
                has_data.add(producer_id)
            elif producer_id in has_data:
                has_data.remove(producer_id)
            else:
                spent.append(delta)
        bounds.append(len(spent))
    write_deltas(Path(task.out), np.array(spent, np.uint32), np.array(bounds))
    return SupersededOffsets(tuple(np.diff(bounds).tolist()))


# --- what was found, as files ---------------------------------------------------------------


def write_deltas(path: Path, deltas: Deltas, bounds: Longs | Any) -> None:
    """Offsets within segments: ``deltas[bounds[i]:bounds[i + 1]]`` are those of segment ``i``.

    Under its name only when whole, as a task may run twice.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    data = np.asarray(bounds, np.int64).tobytes() + np.asarray(deltas, np.uint32).tobytes()
    write_shared(temporary, data)
    temporary.rename(path)


def read_deltas(paths: Iterable[str], segments: int, segment: int) -> Deltas:
    """One segment's offsets from all files, in order."""
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


def add_up(found: Sequence[SupersededOffsets]) -> SupersededOffsets:
    """Many ranges as one."""
    counts = np.array([part.counts for part in found], np.int64).sum(axis=0)
    return SupersededOffsets(
        tuple(counts.tolist()),
        sum(part.keys for part in found),
        sum(part.entries for part in found),
        sum(part.newest_sum for part in found) % 2**64,
    )
