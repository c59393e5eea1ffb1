"""The state of a partition's producers at start-up: snapshots, and the batches since the newest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cordwood.batch.records import parse_marker
from cordwood.errors import CorruptBatch
from cordwood.log.format.layout import FileKind, file_name, file_path
from cordwood.log.format.producers import Producers, WrongSnapshot
from cordwood.log.format.scan import BatchWalk, Located, read_fd
from cordwood.log.read.segment import Segment
from cordwood.log.recovery.result import Recovery
from cordwood.model import Aborted


class ProducerReplay:
    """Rebuilds producers from the files of one partition; reports what it had to rebuild."""

    def __init__(self, directory: Path, recovery: Recovery, now_ms: int) -> None:
        self._directory = directory
        self._recovery = recovery
        self._now_ms = now_ms

    def load(self, base_offset: int, sealed: Sequence[Segment]) -> Producers:
        """The state at ``base_offset``: its snapshot, or an older one and the batches since."""
        producers = self._snapshot_at(base_offset)
        if producers is not None:
            return producers
        if not sealed:
            return Producers()
        self._recovery.rebuilt.append(file_name(base_offset, FileKind.SNAPSHOT))
        missed: list[Segment] = []
        for segment in reversed(sealed):
            missed.insert(0, segment)
            producers = self._snapshot_at(segment.base_offset)
            if producers is not None:
                break
        producers = producers or Producers()
        for segment in missed:
            self._replay(segment, producers)
        return producers

    def aborted_in(self, segment: Segment) -> list[Aborted]:
        """The transactions aborted in a sealed segment, from its batches."""
        return self._replay(segment, self._snapshot_at(segment.base_offset) or Producers())

    def apply(
        self, walk: BatchWalk, located: Located, producers: Producers, aborted: list[Aborted]
    ) -> None:
        """Apply one batch; adds the transaction that it aborts, if any."""
        header = located.header
        if header.producer_id < 0:
            return
        try:
            marker = parse_marker(walk.batch(located)) if header.is_control else None
        except CorruptBatch as error:
            self._recovery.notes.append(f"control batch at position {located.position}: {error}")
            marker = None
        ended = producers.update(header, self._now_ms, marker)
        if ended is not None:
            aborted.append(ended)

    def _snapshot_at(self, offset: int) -> Producers | None:
        path = file_path(self._directory, offset, FileKind.SNAPSHOT)
        try:
            return Producers.from_snapshot(path.read_bytes())
        except FileNotFoundError:
            return None
        except WrongSnapshot as error:
            self._recovery.notes.append(f"{path}: {error}; the log is replayed instead")
            return None

    def _replay(self, segment: Segment, producers: Producers) -> list[Aborted]:
        """Apply every batch of a sealed segment; returns the transactions aborted in it."""
        aborted: list[Aborted] = []
        with segment.reading() as fd:
            walk = BatchWalk(read_fd(fd), segment.size_bytes, segment.base_offset, verify=False)
            for located in walk:
                self.apply(walk, located, producers, aborted)
        if walk.problem:
            raise segment.corruption(walk.problem, walk.valid_bytes)
        self._recovery.scanned_bytes += segment.size_bytes
        return aborted
