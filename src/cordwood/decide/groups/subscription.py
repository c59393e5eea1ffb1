"""Parses and encodes what consumers say to each other through a classic group.

The members of a group of protocol type ``consumer`` define these bytes among themselves. Their
topics matter when offsets are deleted: a cursor on a topic that a member subscribes to is kept.
A group with members of both protocols needs all of it, because there the broker is the leader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from cordwood.model import TopicPartition

_OWNED_VERSION, _GENERATION_VERSION, _RACK_VERSION = 1, 2, 3


class ConsumerSubscription(NamedTuple):
    """What a classic consumer tells the leader."""

    version: int
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    rack_id: str | None = None


class _Parser:
    """Reads big-endian values one after the other; raises ``struct.error`` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        """Return one integer."""
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        assert isinstance(value, int)
        return value

    def count(self) -> int:
        """Return the length of an array, which is not null."""
        count = self.number(">i")
        if count < 0:
            raise ValueError("null array")
        return count

    def raw(self, length: int) -> bytes | None:
        """Return that many bytes; None for -1."""
        end = self._position + max(length, 0)
        if length < -1 or end > len(self._data):
            raise ValueError("length out of bounds")
        start, self._position = self._position, end
        return None if length < 0 else self._data[start:end]

    def text(self) -> str | None:
        """Return one string; None if it is null."""
        data = self.raw(self.number(">h"))
        return None if data is None else data.decode()

    def name(self) -> str:
        """Return one string that is not null."""
        text = self.text()
        if text is None:
            raise ValueError("null string")
        return text

    def partitions(self) -> frozenset[TopicPartition]:
        """Return an array of topics with their partitions."""
        found: set[TopicPartition] = set()
        for _ in range(self.count()):
            topic = self.name()
            found |= {TopicPartition(topic, self.number(">i")) for _ in range(self.count())}
        return frozenset(found)


def parse_subscription(metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics, or ``None`` if the bytes are not a consumer subscription.

    Layout: version i16, then topics as an i32 count of (i16 length, UTF-8 bytes). Only this prefix,
    which all versions share, is read.
    """
    try:
        parser = _Parser(metadata)
        if parser.number(">h") < 0:
            return None
        return frozenset(parser.name() for _ in range(parser.count()))
    except (struct.error, ValueError):
        return None


def parse_whole_subscription(metadata: bytes) -> ConsumerSubscription | None:
    """The whole subscription, or ``None`` if the bytes are not one.

    After the topics: user data; owned partitions from version 1, the generation from version 2, and
    the rack id from version 3.
    """
    try:
        parser = _Parser(metadata)
        version = parser.number(">h")
        if version < 0:
            return None
        topics = frozenset(parser.name() for _ in range(parser.count()))
        parser.raw(parser.number(">i"))  # user data
        owned = parser.partitions() if version >= _OWNED_VERSION else frozenset()
        if version >= _GENERATION_VERSION:
            parser.number(">i")
        rack_id = parser.text() if version >= _RACK_VERSION else None
    except (struct.error, ValueError):
        return None
    return ConsumerSubscription(version, topics, owned, rack_id)


def parse_assignment(data: bytes) -> frozenset[TopicPartition] | None:
    """The partitions of an assignment, or ``None`` if the bytes are not one; none if empty."""
    if not data:
        return frozenset()
    try:
        parser = _Parser(data)
        return None if parser.number(">h") < 0 else parser.partitions()
    except (struct.error, ValueError):
        return None


def encode_assignment(partitions: Iterable[TopicPartition], version: int) -> bytes:
    """An assignment as a leader would send it: version, partitions by topic, no user data."""
    by_topic: Mapping[str, list[int]] = {
        topic: [each.partition for each in group]
        for topic, group in groupby(sorted(partitions), key=lambda each: each.topic)
    }
    parts = [struct.pack(">hi", version, len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + struct.pack(">i", -1)
