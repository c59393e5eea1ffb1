"""Read state of a partition: its segments and the read snapshot that readers use.

The writer changes the tuple of segments and then publishes a new snapshot; readers take the current
snapshot. If files are renamed while a reader uses its snapshot, the reader retries with the next
one. The thread that renames holds ``replacing`` until the new snapshot is published, so a reader
never retries in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cordwood.errors import CorruptionError, PartitionOffline, UnavailableError
from cordwood.log.health.partition_health import PartitionHealth
from cordwood.log.health.registry import DamagedRange
from cordwood.log.read.damage import BadBatch, Damage, Unreadable
from cordwood.log.read.published_offsets import Published, PublishedOffsets
from cordwood.log.read.segment import Retired, Segment
from cordwood.log.read.snapshot import ReadSnapshot
from cordwood.model import NO_TIMESTAMP

T = TypeVar("T")


class LogEnd(NamedTuple):
    """The end of the log after a write. Publishing it moves the high watermark here."""

    offset: int
    segment: Segment  # the active segment at that time
    size_bytes: int  # of that segment
    newest_ms: int  # the largest timestamp in that segment
    first_unstable: int | None  # the start of the first open transaction


class ReadState:
    """The segments and the current read snapshot. Only ``look`` is safe on any thread."""

    view: ReadSnapshot

    def __init__(self, published_offsets: PublishedOffsets, health: PartitionHealth) -> None:
        self.replacing = threading.Lock()
        self._health = health
        self.log_start_offset = 0
        self.segments: tuple[Segment, ...] = ()  # the last one is active
        self.bases: tuple[int, ...] = ()
        self._published_offsets = published_offsets

    @property
    def active(self) -> Segment:
        """The active segment."""
        return self.segments[-1]

    def set_segments(self, segments: tuple[Segment, ...]) -> None:
        """Set the segments; readers see them after the next ``publish`` or ``refresh``."""
        self.segments = segments
        self.bases = tuple(segment.base_offset for segment in segments)

    def publish(self, end: LogEnd) -> None:
        """Publish a snapshot with every record up to ``end``."""
        stable = end.offset if end.first_unstable is None else end.first_unstable
        log_start_offset = self.log_start_offset
        view = ReadSnapshot(
            self.segments,
            self.bases,
            log_start_offset,
            end.offset,
            max(stable, log_start_offset),
            end.size_bytes,
            end.newest_ms,
        )
        self._show(view if end.segment is self.segments[-1] else self._without_later(view, end))

    def refresh(self) -> None:
        """Publish changed segments (dropped, replaced, sealed) under the same high watermark."""
        old = self.view
        view = old._replace(
            segments=self.segments,
            bases=self.bases,
            log_start_offset=self.log_start_offset,
            last_stable_offset=max(old.last_stable_offset, self.log_start_offset),
        )
        end = LogEnd(old.high_watermark, old.segments[-1], old.end_position, old.newest_ms, None)
        self._show(self._without_later(view, end))

    def _without_later(self, view: ReadSnapshot, end: LogEnd) -> ReadSnapshot:
        """The snapshot without the segments that begin after ``end``."""
        segments = tuple(s for s in self.segments if s.base_offset <= end.offset)
        is_same = segments[-1] is end.segment
        return view._replace(
            segments=segments,
            bases=tuple(segment.base_offset for segment in segments),
            # Another last segment begins at the high watermark, so none of it is published.
            end_position=end.size_bytes if is_same else 0,
            newest_ms=end.newest_ms if is_same else NO_TIMESTAMP,
        )

    def _show(self, view: ReadSnapshot) -> None:
        self.view = view
        self._published_offsets.publish(
            Published(
                view.log_start_offset,
                view.high_watermark,
                view.last_stable_offset,
                view.segments[-1].base_offset,
                view.end_position,
            )
        )

    def published_bytes(self) -> int:
        """How many bytes of the active segment are published."""
        return self.view.end_position if self.view.segments[-1] is self.active else 0

    def look(self, ask: Callable[[ReadSnapshot], T]) -> T:
        """Call ``ask`` with the current snapshot; retry with the next one if files were renamed."""
        while True:
            view = self.view
            try:
                return ask(view)
            except Retired:
                with self.replacing:
                    pass  # wait until the renaming thread has published the new snapshot
            except BadBatch as error:
                self._map(view, error)
                continue
            except Unreadable as error:
                self._report(error.segment, error.damage)
                raise
            except CorruptionError as error:
                self._health.read_failed(str(error))
                raise
            except OSError as error:
                self._health.read_failed(f"a read failed: {error}")
                raise UnavailableError(f"a read failed: {error}") from error
            if self.view is view:
                raise PartitionOffline("its files are missing or being replaced; open it again")

    def _map(self, view: ReadSnapshot, bad: BadBatch) -> None:
        """Determine the damaged range around a bad batch, so that the read can be retried."""
        segment = bad.segment
        is_last = segment is view.segments[-1]
        limit = view.end_position if is_last else segment.size_bytes
        end_offset = view.high_watermark if is_last else segment.end_offset
        known = segment.damage
        found = segment.map_damage(bad.position, limit, end_offset)
        if found is None or segment.damage == known:  # no damage found, but unreadable
            self._health.read_failed(str(bad))
            raise bad
        self._report(segment, found)

    def _report(self, segment: Segment, damage: Damage) -> None:
        text = f"{segment.path()}: {damage.problem}"
        self._health.damaged(
            DamagedRange(segment.base_offset, damage.start_offset, damage.end_offset, text)
        )
