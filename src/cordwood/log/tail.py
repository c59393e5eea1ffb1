"""The growing end of a partition: the active segment and its file, open for writing.

Bytes go in here and nowhere else. A write that fails is cut back to the size before it, so a full
disk changes nothing; if even that fails, or a sync does, the tail is ``Broken`` and must not be
used again (``partition`` says why).
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.batch.header import BatchHeader, parse_header, patch, stamp_append_time
from cordwood.batch.records import Marker, parse_marker
from cordwood.errors import CordwoodError
from cordwood.log.files import Files, OpenFile
from cordwood.log.segment import Segment


class Broken(Exception):  # caught within the room: the partition goes offline
    """What the file holds past its published part is not known any more."""


class Tail:
    """The active segment's end; writer thread only."""

    def __init__(self, segment: Segment, file: OpenFile, files: Files) -> None:
        """Everything in the segment now is on the device."""
        self.segment = segment
        self._file = file
        self._files = files
        self.synced_bytes = segment.size_bytes

    def write(self, data: bytearray | memoryview) -> None:
        """Put bytes behind the last batch; all of them or none. The caller notes them."""
        size_bytes = self.segment.size_bytes
        try:
            self._files.write_at(self._file, data, size_bytes)
        except CordwoodError:
            try:
                self._files.truncate(self._file, size_bytes)
            except CordwoodError as error:
                raise Broken(f"a failed write could not be undone ({error})") from error
            raise

    def sync(self, published_bytes: int) -> None:
        """Return once all is on the device.

        When that fails, what lies past ``published_bytes`` was acknowledged to nobody and is cut
        off: a reopened file must not bring it back.
        """
        size_bytes = self.segment.size_bytes
        if size_bytes == self.synced_bytes:
            return
        try:
            self._files.sync_data(self._file)
        except CordwoodError as error:
            why = f"a sync failed, and cannot be trusted a second time ({error})"
            try:
                self._files.truncate(self._file, published_bytes)
            except CordwoodError as second:
                why += f"; nor could the unacknowledged part be cut off ({second})"
            raise Broken(why) from error
        self.synced_bytes = size_bytes

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._file)


def assign(
    data: bytearray | memoryview,
    headers: Sequence[BatchHeader],
    base_offset: int,
    leader_epoch: int,
    stamp_ms: int | None,
) -> list[BatchHeader]:
    """Patch offsets, term and perhaps the time into the batches; their headers as they are now."""
    stored: list[BatchHeader] = []
    position = 0
    for header in headers:
        patch(data, position, base_offset, leader_epoch)
        if stamp_ms is not None:
            stamp_append_time(data, position, stamp_ms)
        stored.append(parse_header(data, position))
        position += header.size_bytes
        base_offset += header.last_offset_delta + 1
    assert position == len(data), "the headers are those of the bytes"
    return stored


def parse_markers(
    data: bytearray | memoryview, headers: Sequence[BatchHeader]
) -> list[Marker | None]:
    """Per batch the marker it holds, if it is one."""
    markers: list[Marker | None] = []
    position = 0
    for header in headers:
        markers.append(parse_marker(data, position) if header.is_control else None)
        position += header.size_bytes
    return markers
