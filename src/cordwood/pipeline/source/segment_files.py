"""Read record batches directly from the segment files of a data directory, without a broker.

Files change during a read: the writer cuts segments, and the broker swaps in compacted segments and
reclaims old ones. So a read goes by offset and does not rely on file names. It lists the directory,
opens the segment that covers the offset, and lists again if the file has vanished by then. An open
file stays readable even after it is renamed or deleted. Files being swapped in (``.swap``) count as
live because each is complete; files marked ``.deleted`` still serve reads planned earlier.

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

CHUNK_BYTES: Final = 2 * MIB  # read, verified and decoded while it is still in the CPU caches
_FRAME: Final = struct.Struct(">qi11xi")  # base offset, batch length, …, last offset delta
_RELISTS_MAX: Final = 100  # give up on a directory that changes faster than it can be listed


class SegmentFileRef(NamedTuple):
    """A segment's log file, under its name at the time the directory was listed."""

    base_offset: int
    path: Path
    suffix: str


class Chunk(NamedTuple):
    """A run of whole batches; records before ``start_offset`` must be skipped."""

    data: bytes | memoryview
    start_offset: int
    end_offset: int  # one past the last offset in the batches
    aborted: Sequence[Aborted] = ()  # transactions to skip, for ``read_committed``


class StartHint(NamedTuple):
    """The position of the batch that begins with ``offset``; always verified before use."""

    offset: int
    base_offset: int  # of the segment
    position: int


def list_segments(directory: Path) -> list[SegmentFileRef]:
    """The log files in offset order; reclaimed ones only below the first live segment."""
    names = _list_stable(directory)
    live: dict[int, SegmentFileRef] = {}
    leaving: dict[int, SegmentFileRef] = {}
    for name in names:
        file = parse_file_name(name)
        if file is None or file.kind is not FileKind.LOG:
            continue
        segment = SegmentFileRef(file.base_offset, directory / name, file.suffix)
        if file.suffix == SWAP or (file.suffix == "" and file.base_offset not in live):
            live[file.base_offset] = segment  # a swap may replace several live files
        elif file.suffix == DELETED:
            leaving[file.base_offset] = segment
    first = min(live, default=None)
    before = [leaving[base] for base in sorted(leaving) if first is not None and base < first]
    return before + [live[base] for base in sorted(live)]


def _list_stable(directory: Path) -> list[str]:
    """List until two listings agree, as a file renamed meanwhile may appear under neither name."""
    names = sorted(path.name for path in directory.iterdir())
    for _ in range(_RELISTS_MAX):
        again = sorted(path.name for path in directory.iterdir())
        if names == again:
            break
        names = again
    return names


def covering(segments: list[SegmentFileRef], offset: int) -> int:
    """Index of the last segment that begins at or before ``offset``; -1 if none does."""
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
    """Yield the batches with offsets in ``[start, end)``, in order, in chunks of ``chunk_bytes``.

    The first and the last batch may also hold records outside the range. ``end`` must not be past
    the high watermark.
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
            segments = list_segments(directory)  # after a cut, the log continues in a new file
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
    """No segment covers the offset any more: raise, or continue at the current log start."""
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
    """Open the file read-only and close its descriptor afterwards."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_segment(
    fd: int, position: int, start: int, end: int, chunk_bytes: int
) -> Iterator[Chunk]:
    """Read batches from ``position`` up to ``end``; yields chunks that reach past ``start``."""
    size_bytes = os.fstat(fd).st_size
    wanted_bytes = chunk_bytes
    while position < size_bytes:
        data = os.pread(fd, min(wanted_bytes, size_bytes - position), position)
        whole_bytes, reached = whole_batches(data, end)
        if whole_bytes == 0:
            needed_bytes = _batch_bytes(data)
            if reached >= end or position + needed_bytes > size_bytes:
                return
            wanted_bytes = needed_bytes  # a single batch is longer than a chunk
            continue
        if reached > start:
            yield Chunk(memoryview(data)[:whole_bytes], start, reached)
        if reached >= end:
            return
        position += whole_bytes
        wanted_bytes = chunk_bytes


def whole_batches(data: bytes | bytearray | memoryview, end: int) -> tuple[int, int]:
    """The size in bytes of the whole batches that begin before ``end``, and the offset after them.

    Reads only the frame fields; checksums are verified when the batches are decoded.
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
    """The size of the first batch, of which ``data`` holds only the beginning."""
    return HEADER_BYTES if len(data) < HEADER_BYTES else 12 + int(_FRAME.unpack_from(data)[1])


def find_position(fd: int, segment: SegmentFileRef, offset: int, hint: StartHint | None) -> int:
    """A position at or before the batch that holds ``offset``.

    A hint or an index entry is used only if the batch it describes is found at that position.
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
    """The last index entry at or before the offset."""
    found = read_index(segment)
    at = int(np.searchsorted(found.offsets, offset, side="right")) - 1 if found else -1
    if found is None or at < 0:
        return None
    return index.OffsetEntry(int(found.offsets[at]), int(found.positions[at]))


class SparseIndex(NamedTuple):
    """A segment's sparse index: the last offsets of batches, and the batches' positions."""

    offsets: Longs
    positions: Longs


def read_index(segment: SegmentFileRef) -> SparseIndex | None:
    """Read the sparse index; None without one, as the active segment's is only in memory."""
    path = file_path(segment.path.parent, segment.base_offset, FileKind.INDEX, segment.suffix)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    usable = data[: len(data) - len(data) % index.OFFSET_ENTRY_BYTES]
    entries = np.frombuffer(usable, ">i4").reshape(-1, 2).astype(np.int64)
    return SparseIndex(segment.base_offset + entries[:, 0], entries[:, 1])


def batch_span(fd: int, position: int) -> tuple[int, int] | None:
    """The first and last offset of the batch at a position; None if no batch begins there."""
    head = os.pread(fd, HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    base_offset, length, last_delta = _FRAME.unpack_from(head)
    if head[16] != 2 or length < HEADER_BYTES - 12 or last_delta < 0:
        return None
    return base_offset, base_offset + last_delta
