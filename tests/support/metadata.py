"""Metadata on a SQLite store, with small topics and entries."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cordwood.metadata.bundle_index import BundleEntry
from cordwood.metadata.front import Metadata
from cordwood.metadata.keys import SegmentEntry, Topic
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import SegmentState, TopicPartition
from support.clock import ManualClock

TP = TopicPartition("t", 0)


def a_topic(name: str = "t", partitions: int = 2, **config: str) -> Topic:
    return Topic(name, f"id-of-{name}", partitions, dict(config), 7)


def an_entry(base: int, end: int, **fields) -> SegmentEntry:
    fields.setdefault("state", SegmentState.SEALED)
    return SegmentEntry(
        base_offset=base,
        end_offset=end,
        size_bytes=100,
        records=end - base,
        first_ms=1,
        newest_ms=2,
        **fields,
    )


def a_bundle(start: int, end: int) -> BundleEntry:
    return BundleEntry(
        start_offset=start,
        end_offset=end,
        name=f"{start}.tar.gz",
        sha256="ab",
        link="cd",
        place="p",
    )


def revision(path: Path) -> int:
    """Return the number of transactions of the metadata store at this path."""
    with closing(SqliteStore(path, ManualClock())) as reading:
        return reading.range("x")[0]


class OpenedMetadata:
    """Both halves of the metadata and their store; ``again`` reads what a restart would see."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path, ManualClock())
        self.metadata = Metadata(self.store)
        self.cluster = self.metadata.cluster
        self.readers = self.metadata.readers

    def again(self) -> Metadata:
        return Metadata(self.store)

    def assert_survives(self) -> None:
        """The metadata in memory equals what a restart reads."""
        assert _shown(self.metadata) == _shown(self.again())


def _shown(metadata: Metadata) -> dict[str, object]:
    """Return every table of both halves; an empty default entry counts as none."""
    tables = vars(metadata.cluster._tables) | vars(metadata.readers._tables)
    del tables["by_kind"]
    for name in ("segments", "bundles"):
        tables[name] = {tp: index.entries() for tp, index in tables[name].items()}
    for name in ("segments", "bundles", "registered"):
        tables[name] = {key: rows for key, rows in tables[name].items() if rows}
    return tables
