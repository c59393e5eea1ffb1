"""A topic's part of an archive: its manifest, its bundles, and the way a bundle comes in.

    <archive>/<topic>.<8 of its id>/
      manifest.jsonl                                     the chain; ``decide.archive`` has its rules
      <partition>/<first seq>-<last seq>.tar.gz          bundles
      incoming/<bundle>.<16 of its sha256>               written and read back, not yet in place
      probes/…                                           while a run asks who sees this place

A task writes a bundle to ``incoming`` and reads it back; the driver reads it there too, enters it
in the manifest, and then moves it into place: so there is never a bundle in its place without an
entry. Whoever opens one looks in both places, and the next run finishes a move that a crash left
out. The name in ``incoming`` says the content, so a task that runs twice, or outlives its run,
never changes what another has checked.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO, Final

from cordwood.client.storage import PART, Storage
from cordwood.decide.archive import (
    MANIFEST,
    Entry,
    Finding,
    Problem,
    check_manifest,
    encode_manifest,
)
from cordwood.errors import CorruptionError, UnknownTopic
from cordwood.log.format.bundle import digest
from cordwood.pipeline.runtime.probe import PROBES

INCOMING: Final = "incoming"
BUNDLE: Final = ".tar.gz"
PARQUET: Final = ".parquet"
CHECKERS: Final = 4  # hashing and reading leave Python, so threads help


class TopicArchive:
    """One topic's archive in a storage."""

    def __init__(self, storage: Storage, home: str) -> None:
        self.storage = storage
        self.home = home

    # --- the manifest -----------------------------------------------------------------------

    def manifest(self) -> bytes:
        """Its text; empty before the first bundle."""
        try:
            with self.storage.open(f"{self.home}/{MANIFEST}") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def entries(self) -> list[Entry]:
        """The manifest's entries; raises ``CorruptionError`` when the chain does not hold."""
        entries, findings = check_manifest(self.manifest())
        if findings:
            first = findings[0]
            raise CorruptionError(
                f"the manifest of {self.home} in {self.storage.place} does not hold: "
                f"{first.where}: {first.detail}; `cordwood archive verify` lists everything"
            )
        return entries

    def write_manifest(self, entries: Iterable[Entry]) -> None:
        """Put a longer manifest in the place of the old one, and read it back."""
        text = encode_manifest(entries)
        self.storage.put(f"{self.home}/{MANIFEST}", io.BytesIO(text))
        if self.manifest() != text:
            raise CorruptionError(f"{self.home}/{MANIFEST} is not what was just written")

    def held(self) -> AbstractContextManager[None]:
        """One run at a time."""
        held: AbstractContextManager[None] = self.storage.held(f"{self.home}/{MANIFEST}")
        return held

    # --- bundles ----------------------------------------------------------------------------

    def incoming(self, name: str, sha256: str) -> str:
        """Where a file of this content is written first."""
        return f"{self.home}/{INCOMING}/{name}.{sha256[:16]}"

    def open(self, name: str, sha256: str) -> IO[bytes]:
        """A file in its place or on its way there; raises ``FileNotFoundError``."""
        try:
            return self.storage.open(f"{self.home}/{name}")
        except FileNotFoundError:
            return self.storage.open(self.incoming(name, sha256))

    def place(self, entry: Entry) -> None:
        """Move a bundle from ``incoming`` into its place, unless it is there; it is, afterwards."""
        for name, sha256 in files_of(entry):
            source, target = self.incoming(name, sha256), f"{self.home}/{name}"
            if self.storage.size(source) is not None:
                self.storage.move(source, target)
            found = self.storage.size(target)
            if found is None or (name == entry.bundle and found != entry.size_bytes):
                raise CorruptionError(
                    f"{target} has {found or 'no'} bytes in {self.storage.place} after it was "
                    f"moved there, its entry says {entry.size_bytes}; run `cordwood archive verify`"
                )

    def sweep(self, entries: Iterable[Entry]) -> None:
        """Remove what runs that died left: half files, and in ``incoming`` what is not entered."""
        entered = {self.incoming(*file) for entry in entries for file in files_of(entry)}
        incoming = f"{self.home}/{INCOMING}/"

        def is_kept(name: str) -> bool:
            is_left = name.endswith(PART) or name.startswith((incoming, f"{self.home}/{PROBES}/"))
            return name in entered or not is_left

        self.storage.sweep(self.home, is_kept)

    # --- verification -----------------------------------------------------------------------

    def verify(
        self, watch: Callable[[int, int], None] | None = None
    ) -> tuple[list[Entry], list[Finding]]:
        """Everything: the chain, every bundle's bytes, and bundles nobody entered.

        ``watch`` is told of bytes checked, and of bytes in all.
        """
        entries, findings = check_manifest(self.manifest())
        done_bytes, total_bytes = 0, sum(entry.size_bytes for entry in entries)
        with ThreadPoolExecutor(CHECKERS) as pool:
            for entry, found in zip(entries, pool.map(self.check, entries), strict=True):
                findings += found
                done_bytes += entry.size_bytes
                if watch is not None:
                    watch(done_bytes, total_bytes)
        return entries, findings + self._strangers(entries)

    def check(self, entry: Entry) -> list[Finding]:
        """What is wrong with one bundle."""
        return [finding for file in files_of(entry) for finding in self.compare(*file)]

    def compare(self, name: str, sha256: str) -> list[Finding]:
        """What is wrong with one file, in its place or on its way there."""
        try:
            with self.open(name, sha256) as file:
                found = digest(file)
        except FileNotFoundError:
            return [Finding(Problem.MISSING, name, f"it is not in {self.storage.place}")]
        except OSError as error:
            return [Finding(Problem.MISSING, name, f"it cannot be read: {error}")]
        if found != sha256:
            detail = f"its sha256 is {found[:12]}…, the manifest says {sha256[:12]}…"
            return [Finding(Problem.CHANGED, name, detail)]
        return []

    def _strangers(self, entries: Sequence[Entry]) -> list[Finding]:
        """Bundles in place that no entry names; what lies in ``incoming`` never came in."""
        known = {entry.bundle for entry in entries}
        found = [name.removeprefix(f"{self.home}/") for name in self.storage.names(self.home)]
        return [
            Finding(Problem.STRANGER, name, "the manifest has no entry for it")
            for name in found
            if name.endswith(BUNDLE) and name not in known and not name.startswith(INCOMING)
        ]


def parquet_name(bundle: str) -> str:
    """Where the same records lie as Parquet."""
    return bundle.removesuffix(BUNDLE) + PARQUET


def files_of(entry: Entry) -> list[tuple[str, str]]:
    """Name and sha256 of the files an entry is about."""
    files = [(entry.bundle, entry.sha256)]
    if entry.parquet_sha256 is not None:
        files.append((parquet_name(entry.bundle), entry.parquet_sha256))
    return files


def list_topic_archives(storage: Storage, topic: str | None = None) -> list[TopicArchive]:
    """Every topic's part, or those of one name, the one with the newest bundle last."""
    homes = [
        name.removesuffix(f"/{MANIFEST}") for name in storage.names() if name.endswith(MANIFEST)
    ]
    topic_archives = [TopicArchive(storage, home) for home in homes]
    if topic is not None:
        topic_archives = [
            topic_archive
            for topic_archive in topic_archives
            if topic_archive.home.rpartition(".")[0] == topic
        ]
        if not topic_archives:
            raise UnknownTopic(f"{storage.place} holds no archive of topic {topic}")
    return sorted(topic_archives, key=_newest)


def _newest(topic_archive: TopicArchive) -> str:
    entries, _ = check_manifest(topic_archive.manifest())
    return max((entry.archived for entry in entries), default="")
