"""Readers, consumer groups, and the bindings of routing keys to topics."""

from __future__ import annotations

from typing import Literal

import msgspec

from cordwood.protocol.api.call import Call, Count, Done, Text

RouteKind = Literal["exact", "prefix"]


class ReaderRow(msgspec.Struct, frozen=True):
    """A registered reader's cursor in one partition."""

    reader: str
    topic: str
    partition: int
    seq: int  # of the last record it acknowledged (offset + 1); 0 before the first
    lag: int
    held_bytes: int  # cannot be reclaimed because of this reader


class ReaderList(msgspec.Struct, frozen=True):
    """The registered readers."""

    readers: tuple[ReaderRow, ...]


class ListReaders(Call[ReaderList], frozen=True):
    """List the readers of one topic or of all."""

    route = "GET", "/readers"
    topic: Text | None = None


class ChangeReader(Call[Done], frozen=True):
    """``advance`` and ``reset`` need an offset; ``register`` may create the topic."""

    route = "POST", "/readers"
    action: Literal["register", "remove", "advance", "reset"]
    topic: Text
    reader: Text
    partition: Count = 0
    offset: Count | None = None
    create: bool = False


class DrainedPartition(msgspec.Struct, frozen=True):
    """A cursor that moved to the end of its partition; offsets, ``end`` not included."""

    topic: str
    partition: int
    start: int
    end: int
    records: int  # acknowledged by this
    released_segments: int  # that RECLAIM may now delete and could not before
    released_bytes: int


class Drained(msgspec.Struct, frozen=True):
    """What a drain moved, and the routes on which the reader is not registered."""

    partitions: tuple[DrainedPartition, ...]
    skipped: tuple[str, ...] = ()


class DrainReader(Call[Drained], frozen=True):
    """Acknowledge everything in ``topics``, or in all routes, for a reader; all or nothing."""

    route = "POST", "/readers/drain"
    reader: Text
    topics: tuple[Text, ...] = ()
    ingress: bool = False  # the ingress topic too
    register: bool = False  # where the reader is not registered
    dry_run: bool = False


class GroupRow(msgspec.Struct, frozen=True):
    """A committed cursor; end and lag are null while the partition is offline."""

    group: str
    topic: str
    partition: int
    offset: int  # the next offset to read
    end_offset: int | None
    lag: int | None


class GroupList(msgspec.Struct, frozen=True):
    """The cursors of consumer groups and readers."""

    groups: tuple[GroupRow, ...]


class ListGroups(Call[GroupList], frozen=True):
    """List the cursors of one group or of all."""

    route = "GET", "/groups"
    group: Text | None = None


class RouteRow(msgspec.Struct, frozen=True):
    """A binding of a routing key to a topic."""

    kind: RouteKind
    key: str
    topic: str


class RouteList(msgspec.Struct, frozen=True):
    """The bindings, exact ones first."""

    routes: tuple[RouteRow, ...]


class ListRoutes(Call[RouteList], frozen=True):
    """List the bindings."""

    route = "GET", "/routes"


class SetRoute(Call[Done], frozen=True):
    """Bind a routing key to a topic."""

    route = "POST", "/routes"
    kind: RouteKind
    key: Text
    topic: Text


class RemoveRoute(Call[Done], frozen=True):
    """Remove a binding."""

    route = "DELETE", "/routes"
    kind: RouteKind
    key: Text
