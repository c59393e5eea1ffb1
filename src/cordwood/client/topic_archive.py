"""One topic's archive: its manifest, its bundles, and how a bundle is added.

    <archive>/<topic>.<first 8 characters of its id>/
      manifest.jsonl                                  hash chain; ``decide.archive`` defines it
      <partition>/<first seq>-<last seq>.tar.gz       bundles
      incoming/<bundle>.<first 16 of its sha256>      written and read back, not yet in place
      probes/…                                        while a run checks that the storage is shared

A task writes a bundle to ``incoming`` and reads it back. The driver reads it there as well, adds it
to the manifest, and only then moves it into place, so no bundle is ever in place without an entry.
Readers look in both places, and the next run finishes a move that a crash interrupted. The name in
``incoming`` contains the content's hash, so a task that runs twice, or outlives its run, never
changes a file that was already checked.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from typing import IO, Final

from cordwood.client.storage import PART, PROBES, Storage, read_small
from cordwood.decide.archive import (
    MANIFEST,
    Entry,
    Finding,
    Problem,
    check_manifest,
    encode_manifest,
)
from cordwood.errors import CorruptionError, UnknownTopic
from cordwood.log.format.bundle import digest, proving
from cordwood.protocol.api.archive import ArchivedTopic

INCOMING: Final = "incoming"
BUNDLE: Final = ".tar.gz"
PARQUET: Final = ".parquet"
CHECKERS: Final = 4  # threads help, because hashing and reading release the GIL


class TopicArchive:
    """One topic's archive in a storage; ``home`` is its directory."""

    def __init__(self, storage: Storage, home: str) -> None:
        self.storage = storage
        self.home = home

    # --- the manifest -----------------------------------------------------------------------

    def manifest(self) -> bytes:
        """Read the manifest's text; empty before the first bundle."""
        return read_small(self.storage, f"{self.home}/{MANIFEST}") or b""

    def entries(self) -> list[Entry]:
        """Read the manifest's entries; raises ``CorruptionError`` if the hash chain is broken."""
        entries, findings = check_manifest(self.manifest())
        if findings:
            first = findings[0]
            raise CorruptionError(
                f"the manifest of {self.home} in {self.storage.place} is invalid: {first.where}: "
                f"{first.detail}; `cordwood archive verify` lists everything"
            )
        return entries

    def write_manifest(self, entries: Iterable[Entry]) -> None:
        """Replace the manifest with a longer one, and read it back."""
        text = encode_manifest(entries)
        self.storage.put(f"{self.home}/{MANIFEST}", io.BytesIO(text))
        if self.manifest() != text:
            raise CorruptionError(
                f"{self.home}/{MANIFEST} does not have the contents that were just written"
            )

    def held(self) -> AbstractContextManager[None]:
        """Hold the archive's lock, so that one run writes at a time; object stores have no lock."""
        held: AbstractContextManager[None] = self.storage.held(f"{self.home}/{MANIFEST}")
        return held

    # --- bundles ----------------------------------------------------------------------------

    def incoming(self, name: str, sha256: str) -> str:
        """Return the name under which a file with this content is first written."""
        return f"{self.home}/{INCOMING}/{name}.{sha256[:16]}"

    def open(self, name: str, sha256: str) -> IO[bytes]:
        """Open a file in its place or in ``incoming``; raises ``FileNotFoundError``."""
        try:
            return self.storage.open(f"{self.home}/{name}")
        except FileNotFoundError:
            return self.storage.open(self.incoming(name, sha256))

    def place(self, entry: Entry) -> None:
        """Move an entry's files from ``incoming`` into place, if not done yet, and check them."""
        for name, sha256 in files_of(entry):
            source, target = self.incoming(name, sha256), f"{self.home}/{name}"
            if self.storage.size(source) is not None:
                self.storage.move(source, target)
            size_bytes = self.storage.size(target)
            if size_bytes is None or (name == entry.bundle and size_bytes != entry.size_bytes):
                raise CorruptionError(
                    f"{target} has {size_bytes or 'no'} bytes in {self.storage.place} after it "
                    f"was moved there, but its entry says {entry.size_bytes}; run `cordwood "
                    "archive verify`"
                )

    def sweep(self, entries: Iterable[Entry]) -> None:
        """Remove leftovers of dead runs: partial files, probes and unlisted incoming files."""
        entered = {self.incoming(*file) for entry in entries for file in files_of(entry)}
        incoming = f"{self.home}/{INCOMING}/"

        def is_kept(name: str) -> bool:
            is_left = name.endswith(PART) or name.startswith((incoming, f"{self.home}/{PROBES}/"))
            return name in entered or not is_left

        self.storage.sweep(self.home, is_kept)

    # --- verification -----------------------------------------------------------------------

    def known_links(self, state: ArchivedTopic) -> dict[str, str]:
        """Return bundle → link of the bundles that the broker has recorded for this storage."""
        return {
            bundle.name.partition("/")[2]: bundle.link
            for part in state.partitions
            for bundle in part.bundles
            if bundle.place == self.storage.place
        }

    def verify(
        self, watch: Callable[[int, int], None] | None = None
    ) -> tuple[list[Entry], list[Finding]]:
        """Check the hash chain, the bytes of every bundle, and for bundles without an entry.

        ``watch`` is called with the bytes checked so far and the total bytes.
        """
        entries, findings = check_manifest(self.manifest())
        done_bytes, total_bytes = 0, sum(entry.size_bytes for entry in entries)
        with ThreadPoolExecutor(CHECKERS) as pool:
            for entry, problems in zip(entries, pool.map(self.check, entries), strict=True):
                findings += problems
                done_bytes += entry.size_bytes
                if watch is not None:
                    watch(done_bytes, total_bytes)
        return entries, findings + self._strangers(entries)

    def check(self, entry: Entry) -> list[Finding]:
        """Check one bundle and its Parquet file; returns what is wrong."""
        return [finding for file in files_of(entry) for finding in self.compare(*file)]

    def compare(self, name: str, sha256: str) -> list[Finding]:
        """Check one file, in its place or in ``incoming``; returns what is wrong."""
        try:
            with self.open(name, sha256) as file:
                actual = digest(file)
        except FileNotFoundError:
            return [Finding(Problem.MISSING, name, f"it is not in {self.storage.place}")]
        except OSError as error:
            return [Finding(Problem.MISSING, name, f"it cannot be read: {error}")]
        if actual != sha256:
            detail = f"its sha256 is {actual[:12]}…, but the manifest says {sha256[:12]}…"
            return [Finding(Problem.CHANGED, name, detail)]
        return []

    def _strangers(self, entries: Sequence[Entry]) -> list[Finding]:
        """Report bundles in place that have no entry; ``incoming`` is not part of the archive."""
        known = {entry.bundle for entry in entries}
        names = [name.removeprefix(f"{self.home}/") for name in self.storage.names(self.home)]
        return [
            Finding(Problem.STRANGER, name, "the manifest has no entry for it")
            for name in names
            if name.endswith(BUNDLE) and name not in known and not name.startswith(INCOMING)
        ]


def put_proved(storage: Storage, file: IO[bytes], name: Callable[[str], str]) -> str:
    """Write a file under a name made from its sha256 and read it back; returns the sha256."""
    file.seek(0)
    sha256 = digest(file)
    file.seek(0)
    storage.put(name(sha256), file)
    with closing(storage.open(name(sha256))) as written, proving(written, name(sha256), sha256):
        return sha256


def parquet_name(bundle: str) -> str:
    """Return the name of the bundle's Parquet file."""
    return bundle.removesuffix(BUNDLE) + PARQUET


def files_of(entry: Entry) -> list[tuple[str, str]]:
    """Return name and sha256 of an entry's files: the bundle and, if any, its Parquet file."""
    files = [(entry.bundle, entry.sha256)]
    if entry.parquet_sha256 is not None:
        files.append((parquet_name(entry.bundle), entry.parquet_sha256))
    return files


def list_topic_archives(storage: Storage, topic: str | None = None) -> list[TopicArchive]:
    """List all topic archives, or those of one topic name; the one with the newest bundle last.

    Raises ``UnknownTopic`` if there is none of that name.
    """
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
            raise UnknownTopic(f"{storage.place} has no archive of topic {topic}")
    return sorted(topic_archives, key=_newest)


def _newest(topic_archive: TopicArchive) -> str:
    entries, _ = check_manifest(topic_archive.manifest())
    return max((entry.archived for entry in entries), default="")
