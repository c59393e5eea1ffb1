"""Read snapshot: an immutable view of a partition that the writer replaces as a whole.

A reader takes the snapshot once and needs no lock: its segments, log start and high watermark
belong together. Nothing at or past the high watermark can be read through it, because it includes
the file position of the high watermark, even while the writer appends behind it.

Gaps are normal: compaction removes records, whole batches and all records of a segment. A read
continues from segment to segment until it has enough bytes, so it is empty only if there is no
batch up to its end. Segments without records are skipped: otherwise many of them in a row would
give as many replies without records, and librdkafka gives up after about ten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from cordwood.batch.header import HEADER_BYTES
from cordwood.errors import CorruptionError
from cordwood.log.read.segment import Segment
from cordwood.log.read.whole_batches import BatchRun
from cordwood.model import NO_TIMESTAMP, Aborted

SEGMENTS_PER_READ_MAX: Final = 64  # each costs an open file and a read


class ReadSlice(NamedTuple):
    """Whole batches as stored, with the partition's offsets at the time of the read."""

    data: bytes | memoryview
    first_offset: int  # of the first batch; may be below the requested offset
    next_offset: int  # where to read next; past the gap if ``data`` is empty
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


class TimedOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class ReadSnapshot(NamedTuple):
    """The readable part of a partition at one moment."""

    segments: tuple[Segment, ...]  # oldest first; all begin at or below the high watermark
    bases: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    end_position: int  # file position of the high watermark in the last segment
    newest_ms: int  # the largest published timestamp of the last segment

    def read(self, offset: int, max_bytes: int, end_offset: int) -> ReadSlice:
        """Return whole batches from ``offset`` on that begin below ``end_offset``."""
        end_offset = min(end_offset, self.high_watermark)
        if offset >= end_offset:
            return self._slice(b"", offset, offset)
        runs = self._runs(offset, max_bytes, end_offset)
        if not runs:
            return self._slice(b"", offset, end_offset)
        data = runs[0].data if len(runs) == 1 else b"".join([run.data for run in runs])
        return self._slice(data, runs[0].first_offset, runs[-1].next_offset)

    def _runs(self, offset: int, max_bytes: int, end_offset: int) -> list[BatchRun]:
        """The batches that one read takes of each segment; at most ``max_bytes``, or one batch."""
        runs: list[BatchRun] = []
        left_bytes = max_bytes
        for segment, limit in self._with_records(offset, end_offset):
            try:
                run = segment.read(offset, left_bytes, end_offset, limit)
            except CorruptionError:
                if runs:  # return the sound part; the next read reports the damage
                    break
                raise
            if run is None:
                continue
            if runs and len(run.data) > left_bytes:
                break
            runs.append(run)
            left_bytes -= len(run.data)
            is_whole = run.next_offset >= segment.end_offset
            if left_bytes < HEADER_BYTES or not is_whole or len(runs) == SEGMENTS_PER_READ_MAX:
                break
        return runs

    def is_resident(self, offset: int, max_bytes: int) -> bool:
        """Whether a ``read`` from here is expected to be served without disk access."""
        left_bytes = max_bytes
        segments = self._with_records(offset, self.high_watermark)
        for segment, limit in islice(segments, SEGMENTS_PER_READ_MAX):
            found_bytes = segment.resident_bytes(offset, left_bytes, limit)
            if found_bytes is None:
                return False
            left_bytes -= found_bytes
            if left_bytes < HEADER_BYTES:
                break
        return True

    def _with_records(self, offset: int, end_offset: int) -> Iterator[tuple[Segment, int]]:
        """The segments that a read visits: those with records, and always the last one.

        The empty batches of the last one tell a client that it has reached the end.
        """
        skipped: Segment | None = None
        for number in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.segments)):
            segment = self.segments[number]
            if segment.base_offset >= end_offset:
                break
            if segment is self.segments[-1]:
                if self.end_position:
                    yield segment, self.end_position
                    return
            elif segment.records:
                skipped = None
                yield segment, segment.size_bytes
            else:
                skipped = segment
        if skipped is not None:
            yield skipped, skipped.size_bytes

    def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        """The first record from the log start on with a timestamp of ``timestamp_ms`` or later."""
        for segment, limit in self._from(self.log_start_offset):
            if self._newest_of(segment) >= timestamp_ms:
                found = self._first_at(segment, timestamp_ms, limit)
                if found is not None:
                    return found
        return None

    def find_max_time(self) -> TimedOffset | None:
        """The first record that has the largest timestamp of the partition."""
        best: tuple[int, Segment, int] | None = None
        for segment, limit in self._from(self.log_start_offset):
            newest_ms = self._newest_of(segment)
            if segment.base_offset < self.log_start_offset:
                newest_ms = self._newest_left(segment, limit)
            if newest_ms > (NO_TIMESTAMP if best is None else best[0]):
                best = newest_ms, segment, limit
        return None if best is None else self._first_at(best[1], best[0], best[2])

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in ``[start, end)``, ordered by their end.

        A transaction is listed in the segment of its marker, which may be any number of segments
        later. An entry whose last stable offset has reached ``end`` ends the search, since no later
        one can matter.
        """
        found: list[Aborted] = []
        for segment, _ in self._from(start):
            for entry in segment.read_aborted():
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return found
        return found

    # --- internals --------------------------------------------------------------------------

    def _slice(self, data: bytes | memoryview, first_offset: int, next_offset: int) -> ReadSlice:
        return ReadSlice(
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
        """The largest timestamp at or after the log start, in the segment that contains it."""
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
        """The first readable record of the segment at or after that time; decodes its batch."""
        with segment.reading() as fd:
            start, end = self.log_start_offset, self.high_watermark
            match = segment.first_at_time(fd, timestamp_ms, start, end, limit)
        if match is None:
            return None
        return TimedOffset(match.record.timestamp_ms, match.record.offset, match.leader_epoch)
