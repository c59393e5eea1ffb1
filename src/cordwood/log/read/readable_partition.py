"""The reading side of a partition: its offsets, its segments and its published records."""

from __future__ import annotations

from cordwood.errors import OffsetOutOfRange
from cordwood.log.read.read_state import ReadState
from cordwood.log.read.segment import Segment
from cordwood.log.read.snapshot import ReadSlice, ReadSnapshot, TimedOffset
from cordwood.model import Aborted, SegmentInfo, TopicPartition


class ReadablePartition:
    """What readers use of a partition. Safe on any thread."""

    tp: TopicPartition
    log_end_offset: int  # of the next record; at or past the high watermark
    _read_state: ReadState

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._read_state.view.log_start_offset

    @property
    def high_watermark(self) -> int:
        """One past the last published record."""
        return self._read_state.view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The start of the first open transaction, or the high watermark if there is none."""
        return self._read_state.view.last_stable_offset

    @property
    def size_bytes(self) -> int:
        """Total size of all ``.log`` files."""
        return sum(segment.size_bytes for segment in self._read_state.segments)

    def segments(self) -> tuple[SegmentInfo, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(segment.info() for segment in self._read_state.segments)

    def sealed_segment(self, base_offset: int) -> Segment | None:
        """The live sealed segment with this base offset, if any."""
        sealed = self._read_state.view.segments[:-1]
        return next((each for each in sealed if each.base_offset == base_offset), None)

    def read(self, offset: int, max_bytes: int, *, end_offset: int | None = None) -> ReadSlice:
        """Return whole batches from the one that holds ``offset``, or the next one after it.

        Returns at least one batch, whatever its size. Returns none only if no batch lies below
        ``end_offset`` and the high watermark; ``next_offset`` then says where to read next. Raises
        ``OffsetOutOfRange``.
        """

        def ask(view: ReadSnapshot) -> ReadSlice:
            if not view.log_start_offset <= offset <= max(view.high_watermark, self.log_end_offset):
                raise OffsetOutOfRange(
                    f"{self.tp}: offset {offset} is not between the log start "
                    f"{view.log_start_offset} and the high watermark {view.high_watermark}"
                )
            return view.read(
                offset, max_bytes, view.high_watermark if end_offset is None else end_offset
            )

        return self._read_state.look(ask)

    def is_resident(self, offset: int, max_bytes: int) -> bool:
        """Whether this ``read`` is expected to be served from memory, without disk access."""
        return self._read_state.look(lambda view: view.is_resident(offset, max_bytes))

    def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        """The first record whose timestamp is at or after ``timestamp_ms``."""
        return self._read_state.look(lambda view: view.find_time(timestamp_ms))

    def find_max_time(self) -> TimedOffset | None:
        """The first record that has the largest timestamp in the partition."""
        return self._read_state.look(ReadSnapshot.find_max_time)

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that have records in ``[start, end)``."""
        return self._read_state.look(lambda view: view.aborted(start, end))
