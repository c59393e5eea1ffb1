"""A topic's part of an archive: its manifest, its bundles, and the way a bundle comes in.

    <archive>/<topic>.<8 of its id>/
      manifest.jsonl                                     the chain; ``decide.archive`` has its rules
      <partition>/<first seq>-<last seq>.tar.gz          bundles
      incoming/<partition>/<first seq>-<last seq>.tar.gz written and read back, not yet in place

A bundle is written to ``incoming``, read back, entered in the manifest, and then moved into place:
so there is never a bundle in its place without an entry. Whoever opens one looks in both places,
and the next run finishes a move that a crash left out.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO, Final

from cordwood.decide.archive import (
    Entry,
    Finding,
    Problem,
    check_manifest,
    encode_manifest,
)
from cordwood.errors import CorruptionError, UnknownTopic
from cordwood.pipeline.bundles import digest
from cordwood.pipeline.depot import Depot

MANIFEST: Final = "manifest.jsonl"
INCOMING: Final = "incoming"
BUNDLE: Final = ".tar.gz"
PARQUET: Final = ".parquet"
_CHECKERS: Final = 4  # hashing and reading leave Python, so threads help


class Shelf:
    """One topic's archive in a depot."""

    def __init__(self, depot: Depot, home: str) -> None:
        self.depot = depot
        self.home = home

    # --- the manifest -----------------------------------------------------------------------

    def manifest(self) -> bytes:
        """Its text; empty before the first bundle."""
        try:
            with self.depot.open(f"{self.home}/{MANIFEST}") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def entries(self) -> list[Entry]:
        """The manifest's entries; raises ``CorruptionError`` when the chain does not hold."""
        entries, findings = check_manifest(self.manifest())
        if findings:
            first = findings[0]
            raise CorruptionError(
                f"the manifest of {self.home} in {self.depot.place} does not hold: {first.where}: "
                f"{first.detail}; `cordwood archive verify` lists everything"
            )
        return entries

    def write_manifest(self, entries: Iterable[Entry]) -> None:
        """Put a longer manifest in the place of the old one, and read it back."""
        text = encode_manifest(entries)
        self.depot.put(f"{self.home}/{MANIFEST}", io.BytesIO(text))
        if self.manifest() != text:
            raise CorruptionError(f"{self.home}/{MANIFEST} is not what was just written")

    def held(self) -> AbstractContextManager[None]:
        """One run at a time."""
        held: AbstractContextManager[None] = self.depot.held(f"{self.home}/{MANIFEST}")
        return held

    # --- bundles ----------------------------------------------------------------------------

    def incoming(self, bundle: str) -> str:
        """Where a bundle is written first."""
        return f"{self.home}/{INCOMING}/{bundle}"

    def open(self, bundle: str) -> IO[bytes]:
        """A bundle, in its place or on its way there; raises ``FileNotFoundError``."""
        try:
            return self.depot.open(f"{self.home}/{bundle}")
        except FileNotFoundError:
            return self.depot.open(self.incoming(bundle))

    def place(self, bundle: str) -> None:
        """Move a bundle from ``incoming`` into its place, unless it is there."""
        for name in (bundle, parquet_name(bundle)):
            if self.depot.exists(self.incoming(name)):
                self.depot.move(self.incoming(name), f"{self.home}/{name}")

    def drop_incoming(self, bundles: Iterable[str]) -> None:
        """Forget bundles on their way in: a run that failed holds no disk."""
        for bundle in bundles:
            for name in (bundle, parquet_name(bundle)):
                self.depot.remove(self.incoming(name))

    # --- verification -----------------------------------------------------------------------

    def verify(
        self, watch: Callable[[int, int], None] | None = None
    ) -> tuple[list[Entry], list[Finding]]:
        """Everything: the chain, every bundle's bytes, and bundles nobody entered.

        ``watch`` is told of bytes checked, and of bytes in all.
        """
        entries, findings = check_manifest(self.manifest())
        done_bytes, total_bytes = 0, sum(entry.size_bytes for entry in entries)
        with ThreadPoolExecutor(_CHECKERS) as pool:
            for entry, found in zip(entries, pool.map(self.check, entries), strict=True):
                findings += found
                done_bytes += entry.size_bytes
                if watch is not None:
                    watch(done_bytes, total_bytes)
        return entries, findings + self._strangers(entries)

    def check(self, entry: Entry) -> list[Finding]:
        """What is wrong with one bundle."""
        findings = self._compare(entry.bundle, entry.sha256)
        if entry.parquet_sha256 is not None:
            findings += self._compare(parquet_name(entry.bundle), entry.parquet_sha256)
        return findings

    def _compare(self, bundle: str, sha256: str) -> list[Finding]:
        try:
            with self.open(bundle) as file:
                found = digest(file)
        except FileNotFoundError:
            return [Finding(Problem.MISSING, bundle, f"it is not in {self.depot.place}")]
        except OSError as error:
            return [Finding(Problem.MISSING, bundle, f"it cannot be read: {error}")]
        if found != sha256:
            detail = f"its sha256 is {found[:12]}…, the manifest says {sha256[:12]}…"
            return [Finding(Problem.CHANGED, bundle, detail)]
        return []

    def _strangers(self, entries: Sequence[Entry]) -> list[Finding]:
        """Bundles in place that no entry names; what lies in ``incoming`` never came in."""
        known = {entry.bundle for entry in entries}
        found = [name.removeprefix(f"{self.home}/") for name in self.depot.names(self.home)]
        return [
            Finding(Problem.STRANGER, name, "the manifest has no entry for it")
            for name in found
            if name.endswith(BUNDLE) and name not in known and not name.startswith(INCOMING)
        ]


def parquet_name(bundle: str) -> str:
    """Where the same records lie as Parquet."""
    return bundle.removesuffix(BUNDLE) + PARQUET


def shelf_name(topic: str, topic_id: str) -> str:
    """A topic created again under the same name has a shelf of its own."""
    return f"{topic}.{topic_id[:8]}"


def list_shelves(depot: Depot, topic: str | None = None) -> list[Shelf]:
    """Every topic's part, or those of one name, the one with the newest bundle last."""
    homes = [name.removesuffix(f"/{MANIFEST}") for name in depot.names() if name.endswith(MANIFEST)]
    shelves = [Shelf(depot, home) for home in homes]
    if topic is not None:
        shelves = [shelf for shelf in shelves if shelf.home.rpartition(".")[0] == topic]
        if not shelves:
            raise UnknownTopic(f"{depot.place} holds no archive of topic {topic}")
    return sorted(shelves, key=_newest)


def _newest(shelf: Shelf) -> str:
    entries, _ = check_manifest(shelf.manifest())
    return max((entry.archived for entry in entries), default="")
