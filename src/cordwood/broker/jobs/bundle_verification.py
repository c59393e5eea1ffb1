"""Verify archive bundles before RECLAIM relies on them.

A bundle is verified if the archive's manifest has an intact hash chain and an entry with the
bundle's hash, the bundle's bytes have that hash, the bundle holds exactly the records of the log
(``log.lifecycle.archive_proof``), and every number in the entry matches the bundle.
``ArchiveService`` accepts only bundle names derived from the topic and its offsets, so a request
chooses only the place.

``verify_bundles`` does all this, once per bundle. ``confirm_bundles`` runs just before segments are
deleted: verified bundles must still exist with the same hash.

These functions block for a long time and need a thread of their own. They change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from cordwood.client.storage import Storage, open_storage
from cordwood.decide.archive import MANIFEST, Entry, Span, check_manifest
from cordwood.errors import ConfigError, CorruptionError, UnavailableError
from cordwood.log.format.bundle import proving
from cordwood.log.lifecycle.archive_proof import BundleProof, ReadableLog, Unproven, prove_bundle
from cordwood.metadata.bundle_index import BundleEntry
from cordwood.model import TopicPartition

FILE: Final = "file://"


class Unreachable(Unproven):
    """The archive is not visible from this process, so nothing is known about its bundles."""


class Lost(Exception):
    """A bundle that was verified is missing or has changed."""

    def __init__(self, bundle: BundleEntry, reason: str) -> None:
        super().__init__(reason)
        self.bundle = bundle


def verify_bundles(
    tp: TopicPartition, bundles: Sequence[BundleEntry], log: ReadableLog
) -> list[BundleEntry]:
    """Read all bundles and compare them with the log; returns them marked as verified.

    Raises ``CorruptionError`` for a bundle that contradicts the log or its manifest entry, and
    ``Unproven`` if no verdict is possible.
    """
    verified = []
    for bundle, entry, storage in _entered(tp, bundles):
        with _reading(storage, bundle, entry) as source:
            proof = prove_bundle(source, tp, entry.span, log)
        _check_entry(bundle.name, entry, proof)
        unproven_records = proof.unproven_records
        verified.append(replace(bundle, verified=True, unproven_records=unproven_records))
    return verified


def confirm_bundles(tp: TopicPartition, bundles: Sequence[BundleEntry]) -> None:
    """Read verified bundles again; raises ``Lost`` for the first that is missing or changed.

    Raises ``Unreachable`` if the archive cannot be read.
    """
    for bundle in bundles:
        try:
            for each, entry, storage in _entered(tp, [bundle]):
                with _reading(storage, each, entry):
                    pass  # read to the end, to check the hash
        except CorruptionError as error:
            raise Lost(bundle, str(error)) from None


def _entered(
    tp: TopicPartition, bundles: Sequence[BundleEntry]
) -> Iterator[tuple[BundleEntry, Entry, Storage]]:
    """Yield each bundle with its manifest entry and its storage."""
    manifests: dict[str, dict[str, Entry]] = {}
    for bundle in bundles:
        storage = _open(bundle.place)
        if bundle.place not in manifests:
            manifests[bundle.place] = _entries(storage, bundle.name.partition("/")[0])
        yield bundle, _entry(manifests[bundle.place], tp, bundle), storage


def _open(place: str) -> Storage:
    if "://" not in place and not place.startswith("/"):
        raise Unreachable(
            f"{place} is a relative path, which means a different directory in every process; "
            "give an absolute path"
        )
    if place.startswith(FILE) and not Path(place.removeprefix(FILE)).is_dir():
        raise Unreachable(
            f"the directory {place} does not exist"
        )  # opening the storage would create it
    try:
        return open_storage(place)
    except ConfigError as error:
        raise Unreachable(str(error)) from None


def _entries(storage: Storage, home: str) -> dict[str, Entry]:
    """Return the manifest's entries by bundle; raises ``Unreachable`` if it cannot be read."""
    try:
        with closing(storage.open(f"{home}/{MANIFEST}")) as file:
            entries, findings = check_manifest(file.read())
    except (OSError, UnavailableError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else f"fails: {error}"
        raise Unreachable(
            f"the broker cannot see the archive at {storage.place}: {home}/{MANIFEST} {why}"
        ) from None
    if findings:
        first = findings[0]
        raise CorruptionError(f"{storage.place}/{home}/{MANIFEST}: {first.where}: {first.detail}")
    return {entry.bundle: entry for entry in entries}


def _entry(entries: Mapping[str, Entry], tp: TopicPartition, bundle: BundleEntry) -> Entry:
    entry = entries.get(bundle.name.partition("/")[2])
    span = Span(bundle.start_offset, bundle.end_offset)
    if entry is None or (entry.link, entry.sha256, entry.span, entry.partition) != (
        bundle.link, bundle.sha256, span, tp.partition,
    ):  # fmt: skip
        raise CorruptionError(
            f"the manifest in {bundle.place} has no matching entry for {bundle.name}; run "
            "`cordwood archive verify`"
        )
    return entry


@contextmanager
def _reading(storage: Storage, bundle: BundleEntry, entry: Entry) -> Iterator[IO[bytes]]:
    """Open a bundle; raises ``CorruptionError`` on exit unless its hash is the entry's."""
    try:
        with (
            closing(storage.open(bundle.name)) as file,
            proving(file, bundle.name, entry.sha256) as source,
        ):
            yield source
    except FileNotFoundError:
        raise CorruptionError(
            f"{bundle.name} is in the manifest, but the broker does not find it in "
            f"{storage.place}; the Spark executors, the job and the broker must share that place"
        ) from None
    except (OSError, UnavailableError) as error:
        raise Unreachable(f"{bundle.name} in {storage.place} cannot be read: {error}") from None


def _check_entry(name: str, entry: Entry, proof: BundleProof) -> None:
    """Compare the entry's numbers with the bundle.

    A restore selects bundles by these numbers and would skip one whose entry is wrong.
    """
    found = proof._asdict()
    for field in ("records", "first_ms", "newest_ms", "transactional"):
        if getattr(entry, field) != found[field]:
            raise CorruptionError(
                f"{name} has {field} {found[field]}, its entry says {getattr(entry, field)}"
            )
