"""Reads the metadata of a data directory without its lock, for read-only commands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from cordwood.errors import CordwoodError
from cordwood.metadata.keys import SegmentEntry, key, parse_key
from cordwood.model import TopicPartition

_UNREADABLE = (sqlite3.Error, CordwoodError, ValueError, TypeError, KeyError)
LAST = "\U0010ffff"  # sorts after every key with a prefix


def peek_segments(path: Path) -> dict[tuple[TopicPartition, int], SegmentEntry]:
    """The segment index in a SQLite file by partition and base offset; empty if unreadable."""
    entries: dict[tuple[TopicPartition, int], SegmentEntry] = {}
    try:
        for (topic, partition, base), value in _rows(path, "segment"):
            entry = msgspec.json.decode(value, type=SegmentEntry)
            entries[TopicPartition(topic, int(partition)), int(base)] = entry
    except _UNREADABLE:
        return {}
    return entries


def peek_configs(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """What was set at run time, by kind and name; empty if unreadable."""
    try:
        return {
            (kind, name): msgspec.json.decode(value, type=dict[str, str])
            for (kind, name), value in _rows(path, "config")
        }
    except _UNREADABLE:
        return {}


def _rows(path: Path, kind: str) -> list[tuple[list[str], bytes]]:
    prefix = key(kind) + "/"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
        rows = opened.execute(
            "SELECT key, value FROM kv WHERE key >= ? AND key < ?", (prefix, prefix + LAST)
        ).fetchall()
    return [(parse_key(text)[1], value) for text, value in rows]
