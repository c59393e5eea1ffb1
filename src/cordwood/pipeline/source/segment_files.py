"""The bytes of a data directory's topics, read from segment files with no broker involved.

Files move under a reader: the writer cuts, the broker swaps compacted segments in and reclaims old
ones. So nothing here holds on to a name. A read goes by offset: it lists the directory, opens the
segment that covers the offset, and lists again when a file is gone by the time it is opened. A file
once open stays readable whatever becomes of its name. Files on their way in (``.swap``) count as
live, as each is whole; files on their way out (``.deleted``) serve reads that were planned before.

Never writes, and never reads past the high watermark (``log.read.published_offsets``).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cordwood.batch.columns import Aborted
from cordwood.batch.header import HEADER_BYTES
from cordwood.batch.header_table import Longs
from cordwood.config import MIB
from cordwood.errors import CorruptionError, DataLoss
from cordwood.log.format import index
from cordwood.log.format.layout import DELETED, SWAP, FileKind, file_path, parse_file_name

CHUNK_BYTES: Final = 2 * MIB  # what is read, checked and decoded before it leaves the caches
_FRAME: Final = struct.Struct(">qi11xi")  # base offset, batch length, …, last offset delta
_RELISTS_MAX: Final = 100  # a directory that changes faster than it can be listed


class SegmentFileRef(NamedTuple):
    """A segment's log file, as it was called when the directory was listed."""

    base_offset: int
    path: Path
    suffix: str


class Chunk(NamedTuple):
    """A run of whole batches; records before ``start_offset`` were in a chunk before."""

    data: bytes | memoryview
    start_offset: int
    end_offset: int  # one past the last the batches cover
    aborted: Sequence[Aborted] = ()  # transactions to leave out, for ``read_committed``


class StartHint(NamedTuple):
    """Where the batch that begins with ``offset`` was seen, or will be: a hint, always checked."""

    offset: int
    base_offset: int  # of the segment
    position: int


def list_segments(directory: Path) -> list[SegmentFileRef]:
    """The files that cover the log, in order; reclaimed ones only where nothing live is left."""
    names = _list_stable(directory)
    live: dict[int, SegmentFileRef] = {}
    leaving: dict[int, SegmentFileRef] = {}
    for name in names:
        file = parse_file_name(name)
        if file is None or file.kind is not FileKind.LOG:
            continue
        segment = SegmentFileRef(file.base_offset, directory / name, file.suffix)
        if file.suffix == SWAP or (file.suffix == "" and file.base_offset not in live):
            live[file.base_offset] = segment  # a swap replaces more than its namesake
        elif file.suffix == DELETED:
            leaving[file.base_offset] = segment
    first = min(live, default=None)
    before = [leaving[base] for base in sorted(leaving) if first is not None and base < first]
    return before + [live[base] for base in sorted(live)]


def _list_stable(directory: Path) -> list[str]:
    """Names listed twice alike: a file renamed meanwhile may show under neither of its names."""
    names = sorted(path.name for path in directory.iterdir())
    for _ in range(_RELISTS_MAX):
        again = sorted(path.name for path in directory.iterdir())
        if names == again:
            break
        names = again
    return names


def covering(segments: list[SegmentFileRef], offset: int) -> int:
    """Which segment holds ``offset``: the last that begins at or before it; -1 if none does."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1


def read_chunks(
    directory: Path,
    start: int,
    end: int,
    *,
    fail_on_data_loss: bool,
    hint: StartHint | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Chunk]:
    """The batches with offsets in ``[start, end)``, in order, in runs of about ``chunk_bytes``.

    The first and last may hold records outside the range; ``end`` is at most the high watermark.
    """
    offset = start
    segments = list_segments(directory)
    vanished = 0
    while offset < end:
        at = covering(segments, offset)
        if at < 0:
            offset = _after_loss(directory, segments, offset, end, fail_on_data_loss)
            continue
        segment = segments[at]
        try:
            with open_log(segment.path) as fd:
                position = find_position(fd, segment, offset, hint)
                for chunk in _read_segment(fd, position, offset, end, chunk_bytes):
                    yield chunk
                    offset = max(offset, chunk.end_offset)
        except FileNotFoundError:
            vanished += 1
            if vanished > _RELISTS_MAX:
                raise
            segments = list_segments(directory)
            continue
        if offset >= end:
            return
        if at + 1 == len(segments):
            segments = list_segments(directory)  # a cut since: the log goes on in a new file
            if covering(segments, offset) < 0 or segments[-1].base_offset <= segment.base_offset:
                raise CorruptionError(
                    f"{segment.path} ends at offset {offset}, before offset {end} that was to be "
                    "read; run `cordwood segment verify`"
                )
            continue
        following = segments[at + 1].base_offset
        if segment.suffix == DELETED and offset < following and fail_on_data_loss:
            raise _lost(directory, offset, following)
        offset = max(offset, following)


def _after_loss(
    directory: Path, segments: list[SegmentFileRef], offset: int, end: int, fail_on_data_loss: bool
) -> int:
    """Nothing covers the offset any more: fail, or go on where the log begins now."""
    first = segments[0].base_offset if segments else end
    if fail_on_data_loss:
        raise _lost(directory, offset, min(first, end))
    return first


def _lost(directory: Path, offset: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {offset} to {end} of {directory.name} were reclaimed before the query read them; "
        "set failOnDataLoss to false to go on without them, and commitGroup to make RECLAIM wait"
    )


@contextmanager
def open_log(path: Path) -> Iterator[int]:
    """The file's descriptor, for reading."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_segment(
    fd: int, position: int, start: int, end: int, chunk_bytes: int
) -> Iterator[Chunk]:
    """Runs of batches from ``position`` on, from the one with ``start`` until ``end``."""
    size_bytes = os.fstat(fd).st_size
    wanted_bytes = chunk_bytes
    while position < size_bytes:
        data = os.pread(fd, min(wanted_bytes, size_bytes - position), position)
        whole_bytes, reached = whole_batches(data, end)
        if whole_bytes == 0:
            needed_bytes = _batch_bytes(data)
            if reached >= end or position + needed_bytes > size_bytes:
                return
            wanted_bytes = needed_bytes  # one batch longer than a chunk
            continue
        if reached > start:
            yield Chunk(memoryview(data)[:whole_bytes], start, reached)
        if reached >= end:
            return
        position += whole_bytes
        wanted_bytes = chunk_bytes


def whole_batches(data: bytes | bytearray | memoryview, end: int) -> tuple[int, int]:
    """How many bytes whole batches that begin before ``end`` fill, and the offset after them.

    Looks at frames only; whoever decodes the batches checks them.
    """
    position, reached, size_bytes = 0, -1, len(data)
    while reached < end and position + HEADER_BYTES <= size_bytes:
        base_offset, length, last_delta = _FRAME.unpack_from(data, position)
        after = position + 12 + length
        if base_offset >= end:
            return position, max(reached, end)
        if after > size_bytes:
            break
        if length < HEADER_BYTES - 12 or base_offset < reached or last_delta < 0:
            raise CorruptionError(f"no record batch where one should follow offset {reached}")
        position, reached = after, base_offset + last_delta + 1
    return position, reached


def _batch_bytes(data: bytes) -> int:
    """How long the first batch is, of which only the beginning is here."""
    return HEADER_BYTES if len(data) < HEADER_BYTES else 12 + int(_FRAME.unpack_from(data)[1])


def find_position(fd: int, segment: SegmentFileRef, offset: int, hint: StartHint | None) -> int:
    """Where to begin reading so that the batch with ``offset`` is met.

    A hint or an index entry counts only if the batch it speaks of stands there.
    """
    if offset <= segment.base_offset:
        return 0
    if hint and hint.base_offset == segment.base_offset and hint.offset <= offset:
        found = batch_span(fd, hint.position)
        if found and found[0] == hint.offset:
            return hint.position
    entry = _index_floor(segment, offset)
    if entry:
        found = batch_span(fd, entry.position)
        if found and found[1] == entry.offset:
            return entry.position
    return 0


def _index_floor(segment: SegmentFileRef, offset: int) -> index.OffsetEntry | None:
    """The last entry up to the offset."""
    found = read_index(segment)
    at = int(np.searchsorted(found.offsets, offset, side="right")) - 1 if found else -1
    if found is None or at < 0:
        return None
    return index.OffsetEntry(int(found.offsets[at]), int(found.positions[at]))


class SparseIndex(NamedTuple):
    """The entries of a segment's sparse index: batches' last offsets, and where they stand."""

    offsets: Longs
    positions: Longs


def read_index(segment: SegmentFileRef) -> SparseIndex | None:
    """What the sparse index says; None without one, as an active segment's is kept in memory."""
    path = file_path(segment.path.parent, segment.base_offset, FileKind.INDEX, segment.suffix)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    usable = data[: len(data) - len(data) % index.OFFSET_ENTRY_BYTES]
    entries = np.frombuffer(usable, ">i4").reshape(-1, 2).astype(np.int64)
    return SparseIndex(segment.base_offset + entries[:, 0], entries[:, 1])


def batch_span(fd: int, position: int) -> tuple[int, int] | None:
    """The first and last offset of the batch at a position; None if none can begin there."""
    head = os.pread(fd, HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    base_offset, length, last_delta = _FRAME.unpack_from(head)
    if head[16] != 2 or length < HEADER_BYTES - 12 or last_delta < 0:
        return None
    return base_offset, base_offset + last_delta
