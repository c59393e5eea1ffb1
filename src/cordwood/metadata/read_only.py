"""Reads the segment index of a data directory without its lock, for read-only commands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from cordwood.errors import CordwoodError
from cordwood.metadata.keys import SegmentEntry, key, parse_key
from cordwood.model import TopicPartition

LAST = "\U0010ffff"  # sorts after every key with a prefix


def peek_segments(path: Path) -> dict[tuple[TopicPartition, int], SegmentEntry]:
    """The segment index in a SQLite file by partition and base offset; empty if unreadable."""
    prefix = key("segment") + "/"
    entries: dict[tuple[TopicPartition, int], SegmentEntry] = {}
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            rows = opened.execute(
                "SELECT key, value FROM kv WHERE key >= ? AND key < ?", (prefix, prefix + LAST)
            ).fetchall()
        for text, value in rows:
            _, (topic, partition, base) = parse_key(text)
            entry = msgspec.json.decode(value, type=SegmentEntry)
            entries[TopicPartition(topic, int(partition)), int(base)] = entry
    except (sqlite3.Error, CordwoodError, ValueError, TypeError, KeyError):
        return {}
    return entries
