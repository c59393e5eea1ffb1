"""The end of a partition: the active segment and its file, which is open while it is written.

All appended bytes are written here. The file of an idle partition is closed (``open_tails``). After
a failed write the file is truncated to its previous size, so a full disk changes nothing. If the
truncation or a sync fails, ``UnknownFileState`` is raised and the tail must not be used again
(see ``partition`` for the reason).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from cordwood.batch.header import (
    CONTROL_BIT,
    LOG_OVERHEAD,
    BatchHeader,
    parse_header,
    patch,
    stamp_append_time,
)
from cordwood.batch.records import Marker, parse_marker
from cordwood.config import KIB
from cordwood.decide.roll import SegmentCapacity
from cordwood.errors import CordwoodError
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.files.open_tails import OpenTails
from cordwood.log.health.partition_health import UnknownFileState
from cordwood.log.read.published_offsets import PublishedOffsets
from cordwood.log.read.segment import Segment
from cordwood.model import NO_TIMESTAMP

_NO_CAPACITY: Final = SegmentCapacity(0, 0)
GROUP_BYTES_MAX: Final = 256 * KIB  # limit for joining small appends into one write


class Tail:
    """The end of the active segment. Used by the writer thread only."""

    def __init__(
        self, segment: Segment, files: Files, published_offsets: PublishedOffsets, tails: OpenTails
    ) -> None:
        """Start with a segment whose bytes are all on the device. No file is opened yet."""
        self.segment = segment
        self.synced_bytes = segment.size_bytes
        self._file: OpenFile | None = None  # None while idle
        self._files = files
        self._published_offsets = published_offsets
        self._tails = tails
        self._is_preallocated = False

    def _open(self) -> OpenFile:
        """Open the files that appends need; ``OpenTails`` closes those of idle tails."""
        file = self._files.open_existing(self.segment.path())
        try:
            self._published_offsets.map()
        except BaseException:
            self._files.close(file)
            raise
        self._file = file
        self._tails.add(self)
        return file

    def close(self) -> None:
        """Close the files; the next write opens them again."""
        self._tails.discard(self)
        self._published_offsets.unmap()
        if self._file is not None:
            file, self._file = self._file, None
            self._files.close(file)

    def succeed(self, segment: Segment, file: OpenFile) -> Tail:
        """Return the tail of the next segment, given its new file; it is open if this one was."""
        tail = Tail(segment, self._files, self._published_offsets, self._tails)
        if self._file is None:
            self._files.close(file)
            return tail
        self._tails.discard(self)
        self._files.close(self._file)
        tail._file = file
        self._tails.add(tail)
        return tail

    @property
    def appended(self) -> int:
        """A value that grows with every append: the size of the segment."""
        return self.segment.size_bytes

    def write(self, data: bytearray | memoryview) -> None:
        """Write bytes after the last batch, all or none. The caller adds them to the segment."""
        file = self._file
        if file is None:
            file = self._open()
        size_bytes = self.segment.size_bytes
        try:
            self._files.write_at(file, data, size_bytes)
        except CordwoodError:
            try:
                self._files.truncate(file, size_bytes)
            except CordwoodError as error:
                raise UnknownFileState(f"a failed write could not be undone ({error})") from error
            raise

    def preallocate(self, size_bytes: int) -> None:
        """Reserve space for a new segment, before its first write."""
        if self._is_preallocated:
            return
        self._is_preallocated = True
        if self.segment.size_bytes == 0:
            self._files.preallocate(self._file or self._open(), size_bytes)

    def trim(self) -> None:
        """Free the reserved space that was not used; the segment is complete."""
        if self._is_preallocated:
            self._files.truncate(self._file or self._open(), self.segment.size_bytes)

    @property
    def is_synced(self) -> bool:
        """Whether every byte is on the device."""
        return self.segment.size_bytes == self.synced_bytes

    def sync(self, published_bytes: int) -> None:
        """Return once every byte is on the device.

        If the sync fails, the bytes past ``published_bytes``, which were never acknowledged, are
        truncated: they must not reappear when the file is opened again.
        """
        if self.is_synced:
            return
        if self._file is not None:
            self._sync(self._file, published_bytes)
            return
        # The file was closed since the write. A sync applies to the file, not the descriptor, and
        # the kernel reports a failed write-back to the next descriptor that is opened.
        file = self._files.open_existing(self.segment.path())
        try:
            self._sync(file, published_bytes)
        finally:
            self._files.close(file)

    def _sync(self, file: OpenFile, published_bytes: int) -> None:
        size_bytes = self.segment.size_bytes
        try:
            self._files.sync_data(file)
        except CordwoodError as error:
            why = f"a sync failed, and a second attempt cannot be trusted ({error})"
            try:
                self._files.truncate(file, published_bytes)
            except CordwoodError as second:
                why += f"; truncating the unacknowledged part failed as well ({second})"
            raise UnknownFileState(why) from error
        self.synced_bytes = size_bytes


class PendingBatches(Protocol):
    """Whole batches that must be appended together."""

    @property
    def data(self) -> bytearray | memoryview:
        """The bytes, which now belong to the log: offsets are patched into them."""
        ...

    @property
    def headers(self) -> list[BatchHeader]:
        """The header of each batch, in order."""
        ...

    @property
    def strict(self) -> bool:
        """Whether Kafka's sequence rule applies; the line protocol allows gaps."""
        ...


class UnqueuedBatches(NamedTuple):
    """Batches that are appended directly, without the writer's queue."""

    data: bytearray | memoryview
    headers: list[BatchHeader]
    strict: bool


class AppendGroup:
    """Appends with assigned offsets that are written by one system call.

    Each system call releases the GIL. Sixty small appends written one by one would hand the GIL to
    the event loop and wait for it sixty times. A group holds at most one append per producer,
    because the check of a producer's next batch depends on the previous one.
    """

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []  # as they will be in the file
        self.markers: list[Marker | None] = []  # per header; None unless it is a marker
        self.size_bytes = 0
        self.span = 0  # offsets
        self.members: list[int] = []  # indexes into the list of appends
        self.capacity = _NO_CAPACITY  # left in the segment before this group
        self._chunks: list[bytearray | memoryview] = []
        self._producers: set[int] = set()

    def may_take(self, batches: PendingBatches) -> bool:
        """Whether these batches may be written together with those already in the group."""
        bytes_max, records_max = self.capacity
        if self.size_bytes + len(batches.data) > min(bytes_max, GROUP_BYTES_MAX):
            return False
        span = self.span
        for header in batches.headers:
            if header.producer_id in self._producers:
                return False
            span += header.last_offset_delta + 1
        return span <= records_max

    def add(
        self,
        member: int,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        markers: list[Marker | None],
        span: int,
    ) -> None:
        """Add an append of ``span`` offsets to the group."""
        self.members.append(member)
        self._chunks.append(data)
        self.headers += headers
        self.markers += markers
        self.size_bytes += len(data)
        self.span += span
        self._producers.update([who.producer_id for who in headers if who.producer_id >= 0])

    def data(self) -> bytearray | memoryview:
        """The bytes of all members, in order."""
        return self._chunks[0] if len(self._chunks) == 1 else bytearray().join(self._chunks)


def offset_span(headers: Iterable[BatchHeader]) -> int:
    """How many offsets these batches cover."""
    span = 0
    for header in headers:  # a generator is slower for the usual single header
        span += header.last_offset_delta + 1
    return span


def assign(
    data: bytearray | memoryview,
    headers: Sequence[BatchHeader],
    base_offset: int,
    leader_epoch: int,
    append_ms: int,
) -> list[BatchHeader]:
    """Patch offsets, leader epoch and any append time into batches; return the new headers."""
    stored: list[BatchHeader] = []
    position = 0
    for header in headers:
        patch(data, position, base_offset, leader_epoch)
        if append_ms == NO_TIMESTAMP:
            stored.append(header.patched(base_offset, leader_epoch))
        else:
            stamp_append_time(data, position, append_ms)
            stored.append(parse_header(data, position))
        position += LOG_OVERHEAD + header.batch_length
        base_offset += header.last_offset_delta + 1
    assert position == len(data), "the headers are those of the bytes"
    return stored


def parse_markers(
    data: bytearray | memoryview, headers: Sequence[BatchHeader]
) -> list[Marker | None]:
    """The transaction marker in each batch, or None for batches that hold records."""
    for header in headers:  # a generator is slower for the usual single header
        if header.attributes & CONTROL_BIT:
            break
    else:
        return [None] * len(headers)
    markers: list[Marker | None] = []
    position = 0
    for header in headers:
        markers.append(parse_marker(data, position) if header.is_control else None)
        position += header.size_bytes
    return markers
