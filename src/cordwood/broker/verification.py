"""What the broker must have seen before RECLAIM counts on a bundle: all of it, at its place.

The manifest holds an entry with the very hash, its chain whole; the bundle's bytes have that hash;
every batch inside has its checksum and its offsets; and of every live segment the bundle holds as
many records as the segment's index counts. Names are made here from the topic and its offsets, so
a caller names the place and nothing else.

Long, and blocking: for a thread of its own. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from cordwood.client.storage import Depot, open_depot
from cordwood.decide.archive import (
    MANIFEST,
    Entry,
    Live,
    Span,
    check_manifest,
    missing_records,
)
from cordwood.errors import ConfigError, CorruptionError, UnavailableError
from cordwood.log.bundle import check_bundle, proving
from cordwood.meta.bundles import BundleEntry
from cordwood.model import TopicPartition

FILE: Final = "file://"


class Unreachable(Exception):
    """The archive's place cannot be seen from this process; nothing is known about its bundles."""


def verify_bundles(
    tp: TopicPartition, bundles: Sequence[BundleEntry], segments: Sequence[Live]
) -> None:
    """Read them all; raises ``Unreachable``, or ``CorruptionError`` for what is not as told."""
    manifests: dict[str, dict[str, Entry]] = {}
    for bundle in bundles:
        depot = _open(bundle.place)
        home = bundle.name.partition("/")[0]
        if bundle.place not in manifests:
            manifests[bundle.place] = _entries(depot, home)
        entry = _entry(manifests[bundle.place], tp, bundle)
        _verify(depot, home, entry, segments)


def _open(place: str) -> Depot:
    if "://" not in place and not place.startswith("/"):
        raise Unreachable(f"{place} is no absolute path, so it is another place in every process")
    if place.startswith(FILE) and not Path(place.removeprefix(FILE)).is_dir():
        raise Unreachable(f"there is no directory {place}")  # which opening it would make
    try:
        return open_depot(place)
    except ConfigError as error:
        raise Unreachable(str(error)) from None


def _entries(depot: Depot, home: str) -> dict[str, Entry]:
    """The manifest by bundle; a place where it is not to be seen is not the job's place."""
    try:
        with closing(depot.open(f"{home}/{MANIFEST}")) as file:
            entries, findings = check_manifest(file.read())
    except (OSError, UnavailableError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else f"fails: {error}"
        raise Unreachable(
            f"the broker cannot see the archive at {depot.place}: {home}/{MANIFEST} {why}"
        ) from None
    if findings:
        first = findings[0]
        raise CorruptionError(f"{depot.place}/{home}/{MANIFEST}: {first.where}: {first.detail}")
    return {entry.bundle: entry for entry in entries}


def _entry(entries: Mapping[str, Entry], tp: TopicPartition, bundle: BundleEntry) -> Entry:
    entry = entries.get(bundle.name.partition("/")[2])
    span = Span(bundle.start_offset, bundle.end_offset)
    if entry is None or (entry.link, entry.sha256, entry.span, entry.partition) != (
        bundle.link, bundle.sha256, span, tp.partition,
    ):  # fmt: skip
        raise CorruptionError(
            f"the manifest in {bundle.place} has no such entry for {bundle.name}; run "
            "`cordwood archive verify`"
        )
    return entry


def _verify(depot: Depot, home: str, entry: Entry, segments: Sequence[Live]) -> None:
    name = f"{home}/{entry.bundle}"
    tp = TopicPartition(entry.topic, entry.partition)
    try:
        with closing(depot.open(name)) as file, proving(file, name, entry.sha256) as source:
            contents = check_bundle(source, tp, entry.span)
    except FileNotFoundError:
        raise CorruptionError(
            f"{name} is in the manifest and not in {depot.place}, as the broker sees it; do the "
            "Spark executors, the job and the broker share that place?"
        ) from None
    except (OSError, UnavailableError) as error:
        raise Unreachable(f"{name} in {depot.place} cannot be read: {error}") from None
    if contents.records != entry.records:
        raise CorruptionError(
            f"{name} holds {contents.records} records, its entry says {entry.records}"
        )
    if lacking := missing_records(segments, entry.span, contents.count):
        raise CorruptionError(
            f"{name} lacks records of the segment from offset {lacking.base_offset}; archive the "
            "topic to another place with --dest"
        )
