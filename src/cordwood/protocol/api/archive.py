"""Archive bundles: what the broker knows of them, and what jobs report."""

from __future__ import annotations

import msgspec

from cordwood.protocol.api.call import Call, Count, Text


class Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle that a job has written and entered in its manifest."""

    start_offset: Count
    end_offset: Count
    name: Text
    sha256: Text
    link: Text  # the hash in its manifest entry
    place: Text  # the directory or URL of the archive


class KnownBundle(Bundle, frozen=True, forbid_unknown_fields=False):
    """A recorded bundle, and whether the broker found its own records in it."""

    verified: bool = False
    unproven_records: int = 0


class ArchivedPartition(msgspec.Struct, frozen=True):
    """How far a partition is archived and verified, and the cursors to store with it."""

    partition: int
    archived_end: int
    verified_end: int
    bundles: tuple[KnownBundle, ...]
    cursors: dict[str, int]


class ArchivedTopic(msgspec.Struct, frozen=True):
    """The bundles of a topic."""

    topic: str
    id: str
    partitions: tuple[ArchivedPartition, ...]


class ListBundles(Call[ArchivedTopic], frozen=True):
    """List the bundles of a topic."""

    route = "GET", "/archive"
    topic: Text


class BundlesRecorded(msgspec.Struct, frozen=True):
    """How far a partition is archived and verified, and why verification failed, if it did."""

    archived_end: int
    verified_end: int
    unverified: str | None = None


class RecordBundles(Call[BundlesRecorded], frozen=True):
    """Report bundles that a job has written and read back."""

    route = "POST", "/archive"
    topic: Text
    partition: Count
    bundles: tuple[Bundle, ...]
