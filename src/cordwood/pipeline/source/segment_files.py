"""Read record batches directly from the segment files of a data directory, without a broker.

Files change during a read: the writer cuts segments, and the broker swaps in compacted segments and
reclaims old ones. So a read goes by offset and does not rely on file names. It lists the directory,
opens the segment that covers the offset, and lists again if the file has vanished by then. An open
file stays readable even after it is renamed or deleted. Files being swapped in (``.swap``) count as
live because each is complete; files marked ``.deleted`` still serve reads planned earlier.

Never writes, and never reads past the high watermark (``log.read.published_offsets``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.config import MIB
from cordwood.errors import CorruptionError, DataLoss
from cordwood.log.format.layout import DELETED, SWAP, FileKind, parse_file_name
from cordwood.log.read.segment_reader import SegmentReader
from cordwood.model import Aborted

CHUNK_BYTES: Final = 2 * MIB  # read, verified and decoded while it is still in the CPU caches
_RELISTS_MAX: Final = 100  # give up on a directory that changes faster than it can be listed


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


def list_segments(directory: Path) -> list[SegmentReader]:
    """The log files in offset order; reclaimed ones only below the first live segment."""
    names = _list_stable(directory)
    live: dict[int, SegmentReader] = {}
    leaving: dict[int, SegmentReader] = {}
    for name in names:
        file = parse_file_name(name)
        if file is None or file.kind is not FileKind.LOG:
            continue
        segment = SegmentReader(directory, file.base_offset, file.suffix)
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


def covering(segments: list[SegmentReader], offset: int) -> int:
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
            for chunk in _read_segment(segment, offset, end, hint, chunk_bytes):
                if chunk.data:
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
                    f"{segment.path()} ends at offset {offset}, but offset {end} was expected; "
                    "run `cordwood segment verify`"
                )
            continue
        following = segments[at + 1].base_offset
        if segment.suffix == DELETED and offset < following and fail_on_data_loss:
            raise _lost(directory, offset, following)
        offset = max(offset, following)


def _after_loss(
    directory: Path, segments: list[SegmentReader], offset: int, end: int, fail_on_data_loss: bool
) -> int:
    """No segment covers the offset any more: raise, or continue at the current log start."""
    first = segments[0].base_offset if segments else end
    if fail_on_data_loss:
        raise _lost(directory, offset, min(first, end))
    return first


def _lost(directory: Path, offset: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {offset} to {end} of {directory.name} were reclaimed before the query read "
        "them; set failOnDataLoss to false to continue without them, and commitGroup to make "
        "RECLAIM wait"
    )


def _read_segment(
    segment: SegmentReader, start: int, end: int, hint: StartHint | None, chunk_bytes: int
) -> Iterator[Chunk]:
    """Read the batches of the segment that reach past ``start`` and begin below ``end``.

    An empty chunk at the end means that only batches from ``end`` on follow. Checksums are
    verified when the batches are decoded.
    """
    with segment.reading() as fd:
        size_bytes = segment.size_bytes
        position = _hinted(fd, segment, start, hint)
        if position is None:
            position = segment.locate(fd, start, size_bytes)
        reached = segment.base_offset
        while position is not None and position < size_bytes and reached < end:
            run = segment.take(fd, position, chunk_bytes, end, limit=size_bytes, verify=False)
            if run is None:
                yield Chunk(b"", start, end)
                return
            position, reached = position + len(run.data), run.next_offset
            if reached > start:
                yield Chunk(run.data, start, reached)


def _hinted(fd: int, segment: SegmentReader, offset: int, hint: StartHint | None) -> int | None:
    """The hint's position, if the batch that the hint describes is there."""
    if hint is None or hint.base_offset != segment.base_offset or hint.offset > offset:
        return None
    return hint.position if segment.begins_at(fd, hint.position, hint.offset) else None
