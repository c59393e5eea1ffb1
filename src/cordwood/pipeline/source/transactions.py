"""Which transactions were aborted: what a ``read_committed`` query leaves out.

From files: sealed segments have it in their ``.txnindex``; the active one has no such file yet, so
its headers are replayed as recovery would. An entry is true for good, whichever file it is found
in, so those of segments on their way in and out count too. From the wire: the broker says where
aborted transactions begin; each ends with its marker.

Never writes. Whoever decodes the batches leaves the ranges out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cordwood.batch.columns import OFFSET_END, Aborted
from cordwood.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, parse_headers
from cordwood.batch.header_table import walk_batches
from cordwood.batch.kernels.loader import kernels_ready
from cordwood.batch.records import parse_marker
from cordwood.config import KIB
from cordwood.errors import CorruptionError
from cordwood.log.format import scan
from cordwood.log.format.layout import DELETED, FileKind, file_path, parse_file_name
from cordwood.log.format.producers import Producers, WrongSnapshot, parse_aborted
from cordwood.pipeline.source.segment_files import SegmentFileRef, list_segments, open_log

PLAIN_BYTES: Final = 256 * KIB
_TRIES_MAX: Final = 100  # a directory that changes faster than it can be read


class Replayed(NamedTuple):
    """How the end of a log stands, by its own bytes."""

    aborted: list[Aborted]
    first_unstable: int | None  # where the oldest undecided transaction begins


def has_transactions(data: bytes | memoryview) -> bool:
    """Whether any of these batches is part of one; most topics never see any."""
    if len(data) < PLAIN_BYTES and not kernels_ready():  # not worth loading the kernels for
        return any(header.is_transactional for header in parse_headers(data))
    attributes = walk_batches(data, verify=False).batches.attributes
    return bool((attributes & TRANSACTIONAL_BIT).any())


def read_aborted(directory: Path, start: int, end: int) -> list[Aborted]:
    """The aborted transactions with offsets in ``[start, end)``, where all are decided."""
    found = replay_tail(directory).aborted  # first: what is sealed meanwhile has its index by then
    for path in _indexes(directory):
        try:
            entries = parse_aborted(path.read_bytes())
        except FileNotFoundError:
            continue  # reclaimed since, and its records with it
        except WrongSnapshot as error:
            raise CorruptionError(f"{path}: {error}; restart the broker: it rebuilds it") from None
        found += [Aborted(*entry[:3]) for entry in entries]
    return [each for each in found if each.first_offset < end and each.last_offset >= start]


def end_with_markers(data: Any, begun: Sequence[tuple[int, int]]) -> list[Aborted]:
    """Ranges for transactions of which only (producer, first offset) is known.

    One whose marker is not among these batches goes on past them.
    """
    if not begun:
        return []
    batches = walk_batches(data, verify=False).batches
    markers = batches.chosen((batches.attributes & CONTROL_BIT) != 0)
    ended: list[Aborted] = []
    for producer_id, first in begun:
        is_its = (markers.producer_ids == producer_id) & (markers.base_offsets >= first)
        ends = markers.base_offsets[is_its]
        ended.append(Aborted(producer_id, first, int(ends[0]) if len(ends) else OFFSET_END))
    return ended


def replay_tail(directory: Path) -> Replayed:
    """The segments without a transaction index of their own, header by header."""
    for _ in range(_TRIES_MAX):
        try:
            return _replay(list_segments(directory))
        except FileNotFoundError:
            continue  # swapped or reclaimed between listing and opening
    raise CorruptionError(f"{directory} changes faster than it can be read")


def _replay(segments: list[SegmentFileRef]) -> Replayed:
    """From the last snapshot of producers on: usually the active segment's own beginning."""
    live = [segment for segment in segments if segment.suffix != DELETED]
    first, producers = _last_snapshot(live)
    aborted: list[Aborted] = []
    for segment in live[first:]:
        with open_log(segment.path) as fd:
            read = scan.read_fd(fd)
            size_bytes = os.fstat(fd).st_size
            for located in scan.BatchWalk(read, size_bytes, segment.base_offset, verify=False):
                header = located.header
                if not header.is_transactional and not header.is_control:
                    continue
                whole = read(located.position, header.size_bytes) if header.is_control else b""
                ended = producers.update(header, 0, parse_marker(whole) if whole else None)
                if ended is not None:
                    aborted.append(Aborted(*ended[:3]))
    return Replayed(aborted, producers.first_unstable())


def _last_snapshot(live: list[SegmentFileRef]) -> tuple[int, Producers]:
    """The last segment whose beginning has one, and the producers as they were there."""
    for at in reversed(range(1, len(live))):
        segment = live[at]
        path = file_path(segment.path.parent, segment.base_offset, FileKind.SNAPSHOT)
        try:
            return at, Producers.from_snapshot(path.read_bytes())
        except (FileNotFoundError, WrongSnapshot):
            continue
    return 0, Producers()


def _indexes(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        file = parse_file_name(path.name)
        if file is not None and file.kind is FileKind.TXNINDEX:
            yield path
