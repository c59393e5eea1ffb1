"""Pending deletes: dropped and replaced files, kept for a while for readers that still use them.

A segment is marked deleted by renaming its files to ``.deleted``, the ``.log`` first. A crash on
the way leaves other files without a log, and start-up removes those. ``purge`` removes the files
once ``file.delete.delay.ms`` has passed; start-up removes them in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.log.files.disk import Files
from cordwood.log.format.layout import DELETED, FileKind
from cordwood.log.read.segment import Segment


class _PendingDelete(NamedTuple):
    since_ms: int
    paths: tuple[Path, ...]
    segments: tuple[Segment, ...]


class PendingDeletes:
    """The deleted segments of one partition. Used by the writer thread only."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pending: list[_PendingDelete] = []

    def mark_deleted(
        self, segments: Iterable[Segment], now_ms: int, kinds: Iterable[FileKind] = FileKind
    ) -> None:
        """Rename the segments' files, in the given order; the caller syncs the directory."""
        deleted = tuple(segments)
        for segment in deleted:
            segment.retire()
        paths: list[Path] = []
        for segment in deleted:
            for kind in kinds:
                path = segment.path(kind)
                if path.exists():
                    paths.append(path.with_name(path.name + DELETED))
                    self._files.rename(path, paths[-1])
        self._pending.append(_PendingDelete(now_ms, tuple(paths), deleted))

    @property
    def is_empty(self) -> bool:
        """Whether no delete is pending. Safe on any thread."""
        return not self._pending

    def segments(self) -> list[Segment]:
        """The deleted segments; readers may still have their files open."""
        return [segment for pending in self._pending for segment in pending.segments]

    def purge(self, now_ms: int, delay_ms: int) -> int:
        """Remove the files that were marked at least ``delay_ms`` ago; returns how many.

        Files that cannot be removed stay for the next call. The error is raised after all others
        are removed.
        """
        left: list[_PendingDelete] = []
        failure: CordwoodError | None = None
        removed = 0
        for pending in self._pending:
            try:
                if now_ms - pending.since_ms < delay_ms:
                    left.append(pending)
                else:
                    self._remove(pending)
                    removed += len(pending.paths)
            except CordwoodError as error:
                left.append(pending)
                failure = error
        self._pending = left
        if failure is not None:
            raise failure
        return removed

    def _remove(self, pending: _PendingDelete) -> None:
        for path in pending.paths:
            self._files.unlink(path)
        for segment in pending.segments:
            segment.forget()
