"""Where a compaction pass keeps its files, and how leftovers of dead passes are removed.

    <data>/cleaner/<topic>-<n>/*.keys        digests, kept between passes
    <data>/cleaner/<topic>-<n>/<pass>.work/  what stage 2 found, for stage 3
    <data>/staging/<pass>-<number>/          staged segments and, last, their manifest

Never touches a live file.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from cordwood.log.files.modes import make_shared_directory
from cordwood.log.format.layout import FileKind, file_path
from cordwood.log.format.manifest import STAGING_NAME
from cordwood.model import TopicPartition
from cordwood.pipeline.compact.digests import CLEANER_NAME
from cordwood.pipeline.compact.sources import DigestSource, digest_name


class PassFiles:
    """The paths of one pass over one partition."""

    def __init__(self, data: Path, tp: TopicPartition, topic_id: str) -> None:
        topic = hashlib.sha256(topic_id.encode()).hexdigest()[:12]
        self._prefix = f"compact-{topic}-{tp.partition}-"
        self._live = data / str(tp)
        self._staging = data / STAGING_NAME
        self.name = f"{self._prefix}{uuid.uuid4().hex[:12]}"
        self.digests = data / CLEANER_NAME / str(tp)
        self._work = self.digests / f"{self.name}.work"
        self.removable_markers = str(self._work / "markers")

    def log(self, base_offset: int) -> Path:
        """Return a live segment's log."""
        return file_path(self._live, base_offset, FileKind.LOG)

    def digest(self, source: DigestSource) -> Path:
        """Return the digest of a live segment."""
        return self.digests / source.digest_name

    def superseded(self, number: int) -> str:
        """Return the file for the superseded offsets of one range of the hash space."""
        return str(self._work / f"superseded-{number}")

    def staging(self, job: str) -> Path:
        """Return the directory of one swap's staged files."""
        return self._staging / job

    def prepare(self) -> None:
        """Remove what earlier passes over this partition left, and create the work directory."""
        leftovers = [*self._staging.glob(f"{self._prefix}*"), *self.digests.glob("*.work")]
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)
        make_shared_directory(self._work)

    def remove_digests(self) -> None:
        """Delete all digests of the partition."""
        shutil.rmtree(self.digests, ignore_errors=True)

    def tidy(self, jobs: Iterable[str]) -> None:
        """Remove the pass's own files and the digests of segments that no longer exist."""
        for directory in (self._work, *map(self.staging, jobs)):
            shutil.rmtree(directory, ignore_errors=True)
        if not self.digests.is_dir():
            return
        wanted = {digest_name(path) for path in self._live.glob(f"*{FileKind.LOG.value}")}
        for path in self.digests.iterdir():
            if path.is_file() and path.name not in wanted:
                path.unlink(missing_ok=True)
