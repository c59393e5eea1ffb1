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
        self._graves: list[_PendingDelete] = []

    def mark_deleted(
        self, segments: Iterable[Segment], now_ms: int, kinds: Iterable[FileKind] = FileKind
    ) -> None:
        """Rename the segments' files, in the given order; the caller syncs the directory."""
        buried = tuple(segments)
        for segment in buried:
            segment.retire()
        paths: list[Path] = []
        for segment in buried:
            for kind in kinds:
                path = segment.path(kind)
                if path.exists():
                    paths.append(path.with_name(path.name + DELETED))
                    self._files.rename(path, paths[-1])
        self._graves.append(_PendingDelete(now_ms, tuple(paths), buried))

    @property
    def is_empty(self) -> bool:
        """Whether no delete is pending. Safe on any thread."""
        return not self._graves

    def segments(self) -> list[Segment]:
        """The deleted segments; readers may still have their files open."""
        return [segment for grave in self._graves for segment in grave.segments]

    def purge(self, now_ms: int, delay_ms: int) -> int:
        """Remove the files that were marked at least ``delay_ms`` ago; returns how many.

        Files that cannot be removed stay for the next call. The error is raised after all others
        are removed.
        """
        left: list[_PendingDelete] = []
        failure: CordwoodError | None = None
        removed = 0
        for grave in self._graves:
            try:
                if now_ms - grave.since_ms < delay_ms:
                    left.append(grave)
                else:
                    self._remove(grave)
                    removed += len(grave.paths)
            except CordwoodError as error:
                left.append(grave)
                failure = error
        self._graves = left
        if failure is not None:
            raise failure
        return removed

    def _remove(self, grave: _PendingDelete) -> None:
        for path in grave.paths:
            self._files.unlink(path)
        for segment in grave.segments:
            segment.forget()
