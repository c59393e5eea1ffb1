"""What readers see of a partition: one immutable value, replaced whole by the writer.

A reader takes the view once and needs no lock: its segments, log start and high watermark belong
together. Nothing at or past the high watermark can be reached through a view, because the position
at which the high watermark stood is part of it, even while the writer appends behind it.

Gaps are normal: compaction removes records, whole batches and all of a segment. A read that finds
nothing in one segment goes on in the next, so it is empty only when nothing is there up to its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.log.producers import Aborted
from cordwood.log.segment import Segment
from cordwood.model import NO_TIMESTAMP


class Slice(NamedTuple):
    """Whole batches as stored, and where the partition stood when they were read."""

    data: bytes | memoryview
    first_offset: int  # of the first batch: it may begin below the offset asked for
    next_offset: int  # where to read next; past the gap when there is nothing
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


class TimedOffset(NamedTuple):
    """A record found by its time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class View(NamedTuple):
    """The readable part of a partition at one moment."""

    segments: tuple[Segment, ...]  # oldest first; all begin at or below the high watermark
    bases: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    end_position: int  # of the high watermark in the last segment
    newest_ms: int  # the largest published timestamp of the last segment

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole batches from ``offset`` on that begin below ``end_offset``."""
        end_offset = min(end_offset, self.high_watermark)
        if offset >= end_offset:
            return self._slice(b"", offset, offset)
        for segment, limit in self._from(offset):
            if segment.base_offset >= end_offset:
                break
            run = segment.read(offset, max_bytes, end_offset, limit)
            if run is not None:
                return self._slice(run.data, run.first_offset, run.next_offset)
        return self._slice(b"", offset, end_offset)

    def is_resident(self, offset: int, max_bytes: int) -> bool:
        """Whether a ``read`` from here would wait for no disk, as far as can be told beforehand."""
        segment, limit = next(self._from(offset))
        return segment.is_resident(offset, max_bytes, limit)

    def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        """The first record at or after the log start whose timestamp is not below this."""
        for segment, limit in self._from(self.log_start_offset):
            if self._newest_of(segment) >= timestamp_ms:
                found = self._first_at(segment, timestamp_ms, limit)
                if found is not None:
                    return found
        return None

    def find_max_time(self) -> TimedOffset | None:
        """The first record that has the largest timestamp of all."""
        best: tuple[int, Segment, int] | None = None
        for segment, limit in self._from(self.log_start_offset):
            newest_ms = self._newest_of(segment)
            if segment.base_offset < self.log_start_offset:
                newest_ms = self._newest_left(segment, limit)
            if newest_ms > (NO_TIMESTAMP if best is None else best[0]):
                best = newest_ms, segment, limit
        return None if best is None else self._first_at(best[1], best[0], best[2])

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in ``[start, end)``, by the end of each.

        A transaction is noted where its marker is, which may be any number of segments later; one
        whose last stable offset had reached ``end`` tells that none after it can matter.
        """
        found: list[Aborted] = []
        for segment, _ in self._from(start):
            for entry in segment.read_aborted():
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return found
        return found

    # --- inside -----------------------------------------------------------------------------

    def _slice(self, data: bytes | memoryview, first_offset: int, next_offset: int) -> Slice:
        return Slice(
            data,
            first_offset,
            next_offset,
            self.log_start_offset,
            self.high_watermark,
            self.last_stable_offset,
        )

    def _from(self, offset: int) -> Iterator[tuple[Segment, int]]:
        """The segments from the one that covers ``offset``, each with its end position."""
        first = max(bisect_right(self.bases, offset) - 1, 0)
        last = len(self.segments) - 1
        for i in range(first, len(self.segments)):
            segment = self.segments[i]
            yield segment, self.end_position if i == last else segment.size_bytes

    def _holds(self, offset: int) -> bool:
        return self.log_start_offset <= offset < self.high_watermark

    def _newest_of(self, segment: Segment) -> int:
        return self.newest_ms if segment is self.segments[-1] else segment.newest_ms

    def _newest_left(self, segment: Segment, limit: int) -> int:
        """The largest timestamp of a segment whose first records lie below the log start."""
        newest_ms = NO_TIMESTAMP
        with segment.reading() as fd:
            start = segment.locate(fd, self.log_start_offset, limit)
            for position, header in segment.batches(fd, limit if start is None else start, limit):
                if header.max_timestamp_ms <= newest_ms:
                    continue
                if header.base_offset >= self.log_start_offset:
                    newest_ms = header.max_timestamp_ms
                    continue
                records = segment.records_at(fd, position, header)
                left = [r.timestamp_ms for r in records if self._holds(r.offset)]
                newest_ms = max(left, default=newest_ms)
        return newest_ms

    def _first_at(self, segment: Segment, timestamp_ms: int, limit: int) -> TimedOffset | None:
        """The first readable record of the segment at that time or later; decodes its batch."""
        with segment.reading() as fd:
            start = segment.locate_time(fd, timestamp_ms, self.log_start_offset, limit)
            for position, header in segment.batches(fd, start, limit):
                if header.max_timestamp_ms < timestamp_ms or not header.count:
                    continue
                for record in segment.records_at(fd, position, header):
                    if record.timestamp_ms >= timestamp_ms and self._holds(record.offset):
                        return TimedOffset(record.timestamp_ms, record.offset, header.leader_epoch)
        return None
