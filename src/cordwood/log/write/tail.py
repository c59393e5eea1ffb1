"""The growing end of a partition: the active segment and its file, open while it is written.

Bytes go in here and nowhere else. An idle partition gives its file back (``open_tails``). A write
that fails is cut back to the size before it, so a full disk changes nothing; if even that fails, or
a sync does, the tail is ``UnknownFileState`` and must not be used again (``partition`` says why).
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

GROUP_BYTES_MAX: Final = 256 * KIB  # small appends are copied together up to here, and no further


class Tail:
    """The active segment's end; writer thread only."""

    def __init__(
        self, segment: Segment, files: Files, published_offsets: PublishedOffsets, tails: OpenTails
    ) -> None:
        """Everything in the segment now is on the device. Nothing is open yet."""
        self.segment = segment
        self.synced_bytes = segment.size_bytes
        self._file: OpenFile | None = None  # while nobody writes
        self._files = files
        self._published_offsets = published_offsets
        self._tails = tails

    def _open(self) -> OpenFile:
        """Take the descriptors that appends need; whoever is idle for longer gives up its own."""
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
        """Give the descriptors back; the next write takes them again."""
        self._tails.discard(self)
        self._published_offsets.unmap()
        if self._file is not None:
            file, self._file = self._file, None
            self._files.close(file)

    def succeed(self, segment: Segment, file: OpenFile) -> Tail:
        """The tail of the next segment, whose new file this is; open if this one was."""
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
        """Grows with every append."""
        return self.segment.size_bytes

    def write(self, data: bytearray | memoryview) -> None:
        """Put bytes behind the last batch; all of them or none. The caller notes them."""
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

    @property
    def is_synced(self) -> bool:
        """Whether all is on the device."""
        return self.segment.size_bytes == self.synced_bytes

    def sync(self, published_bytes: int) -> None:
        """Return once all is on the device.

        When that fails, what lies past ``published_bytes`` was acknowledged to nobody and is cut
        off: a reopened file must not bring it back.
        """
        if self.is_synced:
            return
        if self._file is not None:
            self._sync(self._file, published_bytes)
            return
        # It was closed between its write and this: a sync is the file's, not the descriptor's, and
        # the kernel reports a failed write-back to whoever opens the file next.
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
            why = f"a sync failed, and cannot be trusted a second time ({error})"
            try:
                self._files.truncate(file, published_bytes)
            except CordwoodError as second:
                why += f"; nor could the unacknowledged part be cut off ({second})"
            raise UnknownFileState(why) from error
        self.synced_bytes = size_bytes


class PendingBatches(Protocol):
    """Whole batches that are to be appended together."""

    @property
    def data(self) -> bytearray | memoryview:
        """Their bytes, the log's from now on: offsets are patched into them."""
        ...

    @property
    def headers(self) -> list[BatchHeader]:
        """Theirs, in order."""
        ...

    @property
    def strict(self) -> bool:
        """Kafka's rule for sequences; the line protocol's allows gaps."""
        ...


class UnqueuedBatches(NamedTuple):
    """Batches nobody waits for in a queue."""

    data: bytearray | memoryview
    headers: list[BatchHeader]
    strict: bool


class AppendGroup:
    """Appends whose offsets are assigned, written with one call: each call lets go of the GIL.

    Sixty small appends written one by one would hand it to the event loop and wait for it sixty
    times. No producer is in a group twice: what its second batch may be depends on its first.
    """

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []  # as the batches will stand in the file
        self.markers: list[Marker | None] = []  # what each of them holds, if it is one
        self.size_bytes = 0
        self.span = 0  # offsets
        self.members: list[int] = []  # which of the appends, by their place
        self.room = SegmentCapacity(0, 0)  # of the segment, when it was empty
        self._chunks: list[bytearray | memoryview] = []
        self._producers: set[int] = set()

    def may_take(self, batches: PendingBatches) -> bool:
        """Whether these may be written together with those that are in it already."""
        room_bytes, room_records = self.room
        if self.size_bytes + len(batches.data) > min(room_bytes, GROUP_BYTES_MAX):
            return False
        span = self.span
        for header in batches.headers:
            if header.producer_id in self._producers:
                return False
            span += header.last_offset_delta + 1
        return span <= room_records

    def add(
        self,
        member: int,
        data: bytearray | memoryview,
        headers: list[BatchHeader],
        markers: list[Marker | None],
    ) -> None:
        """Let them join."""
        self.members.append(member)
        self._chunks.append(data)
        self.headers += headers
        self.markers += markers
        self.size_bytes += len(data)
        self.span += offset_span(headers)
        self._producers.update([who.producer_id for who in headers if who.producer_id >= 0])

    def data(self) -> bytearray | memoryview:
        """All of their bytes."""
        return self._chunks[0] if len(self._chunks) == 1 else bytearray().join(self._chunks)


def offset_span(headers: Iterable[BatchHeader]) -> int:
    """How many offsets these batches take."""
    span = 0
    for header in headers:  # a generator would cost more than what it sums, of one
        span += header.last_offset_delta + 1
    return span


def assign(
    data: bytearray | memoryview,
    headers: Sequence[BatchHeader],
    base_offset: int,
    leader_epoch: int,
    append_ms: int,
) -> list[BatchHeader]:
    """Patch offsets, term and perhaps the time into the batches; their headers as they are now."""
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
    """Per batch the marker it holds, if it is one."""
    if not any(header.attributes & CONTROL_BIT for header in headers):
        return [None] * len(headers)
    markers: list[Marker | None] = []
    position = 0
    for header in headers:
        markers.append(parse_marker(data, position) if header.is_control else None)
        position += header.size_bytes
    return markers
