"""Tables in memory: how the keys of one kind become the rows of a dictionary.

Reads are plain lookups from any thread and never wait for the store. Only ``CachedStore`` changes a
table, and only with durable values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from cordwood.metadata.keys import ReaderPartition, Topic
from cordwood.metadata.offset_index import OffsetIndex, R
from cordwood.model import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class Table(NamedTuple):
    """What a change of a key does in memory, given the names in the key."""

    put: Callable[[list[str], bytes], None]
    delete: Callable[[list[str]], object]


def decoder(kind: type[V]) -> Callable[[bytes], V]:
    """Decodes and checks the JSON of a value; raises ``ValueError``."""
    return msgspec.json.Decoder(kind).decode


def rows_of(
    rows: dict[K, V], name: Callable[[list[str]], K], decode: Callable[[bytes], V]
) -> Table:
    """One row per key, under the name that its key stands for."""

    def put(names: list[str], value: bytes) -> None:
        rows[name(names)] = decode(value)

    return Table(put, lambda names: rows.pop(name(names)))


def topics_of(rows: dict[str, Topic]) -> Table:
    """Topics by name; a stored topic does not repeat the name that is in its key."""

    def put(names: list[str], value: bytes) -> None:
        fields = msgspec.json.decode(value)
        rows[names[0]] = msgspec.convert({"name": names[0], **fields}, Topic)

    return Table(put, lambda names: rows.pop(names[0]))


def ranges_of(indexes: defaultdict[TopicPartition, Any], decode: Callable[[bytes], R]) -> Table:
    """One ``OffsetIndex`` per partition."""

    def put(names: list[str], value: bytes) -> None:
        index: OffsetIndex[R] = indexes[partition_of(names)]
        index.put(int(names[2]), decode(value))

    return Table(put, lambda names: indexes[partition_of(names)].remove(int(names[2])))


def only(_: list[str]) -> str:
    """The name of the row in a table of one row."""
    return ""


def first(names: list[str]) -> str:
    """The first name of a key."""
    return names[0]


def partition_of(names: list[str]) -> TopicPartition:
    """The partition that the first two names stand for."""
    return TopicPartition(names[0], int(names[1]))


def cursor_of(names: list[str]) -> ReaderPartition:
    """The reader and partition of a cursor's key."""
    topic, partition, reader = names
    return ReaderPartition(reader, topic, int(partition))
