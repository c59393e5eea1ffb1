"""The files of a partition besides its growing log: indexes, snapshots, stats, names, deletes.

Knows in which order files change on disk, so that a crash between any two changes is recovered;
``partition`` knows what they mean. A name that cannot be made durable takes the partition offline.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from cordwood.clock import Clock
from cordwood.errors import CordwoodError
from cordwood.log.files.disk import Files
from cordwood.log.format.epochs import Epochs, without_epochs_from
from cordwood.log.format.index import MemoryIndex
from cordwood.log.format.layout import SEGMENT_KINDS, FileKind
from cordwood.log.format.producers import Producers
from cordwood.log.health.partition_health import PartitionHealth
from cordwood.log.read.read_state import ReadState
from cordwood.log.read.segment import Segment
from cordwood.log.swap.ladder import take_live_names
from cordwood.log.write import sidecars
from cordwood.log.write.pending_deletes import PendingDeletes

logger = logging.getLogger("cordwood.log")


class PartitionFiles:
    """The files of one partition. Used by the writer thread only, except ``has_deleted``."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        clock: Clock,
        read_state: ReadState,
        health: PartitionHealth,
    ) -> None:
        self.are_names_durable = False  # a crash may have preceded the sync
        self._directory = directory
        self._files = files
        self._clock = clock
        self._read_state = read_state
        self._health = health
        self._pending_deletes = PendingDeletes(files)

    # --- beside the log ---------------------------------------------------------------------

    def write_sidecars(self, segment: Segment, producers: Producers) -> None:
        """Write the active segment's index files and a snapshot of the producers at its end."""
        assert isinstance(segment.index, MemoryIndex)
        segment.index.seal()
        sidecars.write_index(self._files, segment)
        sidecars.write_snapshot(self._files, self._directory, segment.end_offset, producers)

    def write_stats(self, sealed: Iterable[Segment], active: Segment, synced_bytes: int) -> None:
        """Write the stats of these segments and, with its synced bytes only, of the active one."""
        stats = [segment.stats() for segment in sealed]
        stats.append(active.open_stats(synced_bytes))
        sidecars.write_stats(self._files, self._directory, stats)

    def write_rebuilt_indexes(self, synced_bytes: int) -> list[Segment]:
        """Write the indexes that were rebuilt in memory because their files were wrong.

        Returns their segments; none if the disk refuses, which is tried again later.
        """
        *sealed, active = self._read_state.segments
        wrong = [segment for segment in sealed if segment.is_index_wrong]
        if not wrong:
            return []
        try:
            for segment in wrong:
                sidecars.write_index(self._files, segment)
            self.write_stats(sealed, active, synced_bytes)
            self._files.sync_dir(self._directory)
        except CordwoodError as error:
            logger.warning("index.not_written partition=%s: %s", self._directory.name, error)
            return []
        for segment in wrong:
            logger.info(
                "index.rebuilt partition=%s base=%d", self._directory.name, segment.base_offset
            )
            segment.forget()
            segment.seal()
        return wrong

    # --- names ------------------------------------------------------------------------------

    def sync_names(self, what: str) -> None:
        """Make the names in the directory durable, or go offline."""
        try:
            self._files.sync_dir(self._directory)
            self.are_names_durable = True
        except CordwoodError as error:
            self._health.go_offline(f"{what} could not be made durable ({error})")
            self._health.check()

    def mark_deleted(
        self, segments: Iterable[Segment], what: str, kinds: Iterable[FileKind] = FileKind
    ) -> None:
        """Rename the files of these segments, in the given order, to be removed later."""
        self._pending_deletes.mark_deleted(segments, self._clock.now_ms(), kinds)
        self.sync_names(what)

    @property
    def has_deleted(self) -> bool:
        """Whether ``purge_deleted`` will have something to remove. Safe on any thread."""
        return not self._pending_deletes.is_empty

    def purge_deleted(self, now_ms: int, delay_ms: int) -> int:
        """Remove the deleted files whose delay has passed; returns how many."""
        return self._pending_deletes.purge(now_ms, delay_ms)

    def forget(self) -> None:
        """Close the files that readers had open."""
        for segment in (*self._read_state.segments, *self._pending_deletes.segments()):
            segment.forget()

    # --- several at once --------------------------------------------------------------------

    def truncate(
        self, target: Segment, later: Sequence[Segment], size_bytes: int, epochs: Epochs
    ) -> None:
        """Truncate the files, newest first, so that a crash leaves a shorter log without gaps."""
        kept = [s for s in self._read_state.segments if s.base_offset < target.base_offset]
        # The stats go first: a stale line would make the truncated file look damaged.
        sidecars.write_stats(self._files, self._directory, [s.stats() for s in kept])
        self.sync_names("the truncation")
        self.mark_deleted(reversed(later), "the removal of segments")
        epochs = without_epochs_from(epochs, target.base_offset)
        sidecars.write_epochs(self._files, self._directory, epochs)
        self.sync_names("the truncation")
        file = self._files.open_existing(target.path())
        try:
            self._files.truncate(file, size_bytes)
            self._files.sync_data(file)
        finally:
            self._files.close(file)

    def swap_names(self, start: int, end: int, bases: Sequence[int], synced_bytes: int) -> None:
        """Delete segments ``[start, end)`` and give the ``.swap`` files at ``bases`` live names."""
        segments = self._read_state.segments
        # The stats go first: an old file's line must not be applied to the new file of that name.
        self.write_stats((*segments[:start], *segments[end:-1]), segments[-1], synced_bytes)
        self.sync_names("the swap")
        self.mark_deleted(segments[start:end], "the swap", SEGMENT_KINDS)
        take_live_names(self._files, self._directory, bases)
        self.sync_names("the swap")
