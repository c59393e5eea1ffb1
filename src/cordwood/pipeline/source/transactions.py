"""Find the aborted transactions that a ``read_committed`` query must skip.

From files: sealed segments list them in their ``.txnindex``. The active segment has no such file
yet, so its batch headers are replayed as recovery would. An entry never becomes false, so the
indexes of segments being swapped in or deleted count too. Over the Kafka protocol: the broker
returns where aborted transactions begin, and each ends with its marker.

Never writes, and never removes records itself: the decoder skips the ranges found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from cordwood.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, parse_headers
from cordwood.batch.header_table import walk_batches
from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.records import parse_marker
from cordwood.config import KIB
from cordwood.errors import CorruptionError
from cordwood.log.format.layout import DELETED, FileKind, parse_file_name
from cordwood.log.format.producers import Producers, WrongSnapshot
from cordwood.log.format.scan import BatchWalk, read_fd
from cordwood.log.read.segment_reader import SegmentReader
from cordwood.model import OFFSET_MAX, Aborted
from cordwood.pipeline.source.segment_files import list_segments

PLAIN_BYTES: Final = 256 * KIB
_TRIES_MAX: Final = 100  # give up on a directory that changes faster than it can be read


class Replayed(NamedTuple):
    """The state of transactions at the end of a log, computed from its batch headers."""

    aborted: list[Aborted]
    first_unstable: int | None  # first offset of the oldest open transaction


def has_transactions(data: bytes | memoryview) -> bool:
    """Whether any of these batches is transactional; in most topics none is."""
    if len(data) < PLAIN_BYTES and not kernels_ready():  # too little data to load the kernels for
        return any(header.is_transactional for header in parse_headers(data))
    attributes = walk_batches(data, verify=False).batches.attributes
    return bool((attributes & TRANSACTIONAL_BIT).any())


def read_aborted(directory: Path, start: int, end: int) -> list[Aborted]:
    """The aborted transactions with offsets in ``[start, end)``; no open one may lie in there."""
    aborted = replay_tail(directory).aborted  # first, as a segment sealed meanwhile gets an index
    for segment in _with_index(directory):
        with suppress(FileNotFoundError):  # reclaimed together with its records
            aborted += segment.read_aborted()
    return [each for each in aborted if each.first_offset < end and each.last_offset >= start]


def end_with_markers(data: Any, begun: Sequence[tuple[int, int]]) -> list[Aborted]:
    """Complete transactions of which only (producer id, first offset) is known to offset ranges.

    A transaction whose marker is not in these batches continues past them (``OFFSET_MAX``).
    """
    if not begun:
        return []
    batches = walk_batches(data, verify=False).batches
    markers = batches.chosen((batches.attributes & CONTROL_BIT) != 0)
    ended: list[Aborted] = []
    for producer_id, first in begun:
        is_its = (markers.producer_ids == producer_id) & (markers.base_offsets >= first)
        ends = markers.base_offsets[is_its]
        ended.append(Aborted(producer_id, first, int(ends[0]) if len(ends) else OFFSET_MAX))
    return ended


def replay_tail(directory: Path) -> Replayed:
    """Replay the headers of the segments that have no transaction index yet."""
    for _ in range(_TRIES_MAX):
        try:
            return _replay(list_segments(directory))
        except FileNotFoundError:
            continue  # swapped or reclaimed between listing and opening
    raise CorruptionError(f"{directory} changes faster than it can be read; try again; try again")


def _replay(segments: list[SegmentReader]) -> Replayed:
    """Replay from the last producer snapshot, usually the start of the active segment."""
    live = [segment for segment in segments if segment.suffix != DELETED]
    first, producers = _last_snapshot(live)
    aborted: list[Aborted] = []
    for segment in live[first:]:
        with segment.reading() as fd:
            walk = BatchWalk(read_fd(fd), segment.size_bytes, segment.base_offset, verify=False)
            for located in walk:
                header = located.header
                if not header.is_transactional and not header.is_control:
                    continue
                whole = walk.batch(located) if header.is_control else b""
                ended = producers.update(header, 0, parse_marker(whole) if whole else None)
                if ended is not None:
                    aborted.append(ended)
    return Replayed(aborted, producers.first_unstable())


def _last_snapshot(live: list[SegmentReader]) -> tuple[int, Producers]:
    """The last segment with a producer snapshot at its start, and that snapshot."""
    for at in reversed(range(1, len(live))):
        try:
            return at, Producers.from_snapshot(live[at].path(FileKind.SNAPSHOT).read_bytes())
        except (FileNotFoundError, WrongSnapshot):
            continue
    return 0, Producers()


def _with_index(directory: Path) -> Iterator[SegmentReader]:
    for path in directory.iterdir():
        file = parse_file_name(path.name)
        if file is not None and file.kind is FileKind.TXNINDEX:
            yield SegmentReader(directory, file.base_offset, file.suffix)
