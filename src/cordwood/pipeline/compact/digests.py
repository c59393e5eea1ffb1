"""Key digests: the key hash and offset of every keyed record of a segment, in 20 bytes each.

A digest file covers one segment. It holds an entry for each keyed record that was not aborted
(``batch.kernels.digests`` defines the entry), sorted by hash into 1024 buckets, and a summary of
the segment. A pass writes digests for segments that have none and reuses those of earlier passes.
So digests serve as the shuffle within a pass and as its cache between passes: the keys of a clean
segment are not read from its log again.

    <data>/cleaner/secret                           key of the hash; a new one invalidates all files
    <data>/cleaner/<topic>-<n>/<base>-<size>-<mtime>.keys

A digest belongs to exactly one log file, which its name identifies; the content names the topic id.
Every part has a checksum. A lost or damaged digest is made again by reading its segment.
This module never writes to a partition directory.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.columns import Columns
from cordwood.batch.header import Buffer, crc32c
from cordwood.batch.header_table import HeaderTable, Longs, readonly, walk_batches
from cordwood.batch.kernels.loader import LazyKernels
from cordwood.errors import CorruptBatch, CorruptionError, DamagedDigest
from cordwood.log.files.modes import make_shared_directory, open_shared, write_shared
from cordwood.model import Aborted
from cordwood.pipeline.compact.sources import CHUNK_BYTES, DigestSource, read_chunks

kernels = LazyKernels("digests")
CLEANER_NAME: Final = "cleaner"
BUCKETS: Final = 1024
BUCKET_SHIFT: Final = 22  # applied to the highest 32 bits of the hash
ENTRY_WORDS: Final = 5
BLOCK_ENTRIES: Final = 1 << 20  # sorted in one block, so memory does not grow with the segment
DELTA: Final = 0x7FFFFFFF
EVENT_DATA: Final = 0
EVENT_MARKER: Final = 1
_VERSION: Final = 1
_MAGIC: Final = b"CWKEYS01"
_TRAILER: Final = struct.Struct("<II8s")  # JSON length, checksum of all but the entries, magic
_INDEX_BYTES: Final = 8 * BUCKETS  # per block: counts, then checksums

Entries = NDArray[np.uint32]
Words = NDArray[np.uint64]


@dataclass(slots=True)
class Summary:
    """Counts over a whole segment."""

    entries: int = 0
    records: int = 0  # in batches that were not aborted
    keyless: int = 0
    aborted_batches: int = 0  # batches of aborted transactions that hold records
    bare_tombstones: int = 0  # in batches without a delete horizon
    empty_batches: int = 0
    markers: int = 0
    horizons: list[tuple[int, int]] = field(default_factory=list)  # due ms, first offset

    def add_horizons(self, due_ms: Longs, offsets: Longs) -> None:
        """Record delete horizons of tombstones or markers: each due time with its first offset."""
        horizons = dict(self.horizons)
        times, firsts = np.unique(due_ms, return_index=True)
        for time_ms, first in zip(times.tolist(), firsts.tolist(), strict=True):
            horizons[time_ms] = min(horizons.get(time_ms, 2**63), int(offsets[first]))
        self.horizons = sorted(horizons.items())


# --- the secret -----------------------------------------------------------------------------


def open_secret(data: Path) -> Words:
    """Return the key of the hash; the first call in a data directory creates it."""
    path = data / CLEANER_NAME / "secret"
    make_shared_directory(path.parent)
    if not path.exists():
        made = path.with_name(f"secret.{os.getpid()}.tmp")
        write_shared(made, secrets.token_bytes(16))
        try:
            os.link(made, path)  # if another process was first, its secret is used
        except FileExistsError:
            pass
        finally:
            made.unlink()
    return np.frombuffer(path.read_bytes(), "<u8").astype(np.uint64)


def parse_secret(data: bytes) -> Words:
    """Parse a task's copy of the secret into a writable array: kernels reject read-only ones."""
    return np.frombuffer(data, np.uint64).copy()


def fingerprint(secret: Words) -> int:
    """Return a checksum that tells secrets apart without revealing them."""
    return crc32c(b"cordwood" + secret.tobytes())


# --- writing --------------------------------------------------------------------------------


class DigestWriter:
    """Writes one digest chunk by chunk; only a complete file gets its final name."""

    def __init__(
        self,
        path: Path,
        topic_id: str,
        base_offset: int,
        secret: Words,
        *,
        block_entries: int = BLOCK_ENTRIES,
    ) -> None:
        self.summary = Summary()
        self._block_entries = block_entries
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._topic_id = topic_id
        self._base_offset = base_offset
        self._secret = secret
        self._file = open_shared(self._temporary)
        self._waiting: list[Entries] = []
        self._waiting_count = 0
        self._index: list[bytes] = []
        self._events: list[Longs] = []

    def add(self, data: Buffer, aborted: Sequence[Aborted] = ()) -> Columns:
        """Add a run of whole batches; returns its decoded rows (key, value, timestamp)."""
        batches = walk_batches(data, verify=False).batches
        columns = decode_columns(
            data, wanted=frozenset({"key", "value", "timestamp"}), aborted=aborted
        )
        self._add_batches(batches, aborted)
        self._add_rows(columns)
        return columns

    def _add_batches(self, batches: HeaderTable, aborted: Sequence[Aborted]) -> None:
        summary, counts, is_marker = self.summary, batches.counts, batches.is_marker
        summary.empty_batches += int((counts == 0).sum())
        summary.markers += int(is_marker.sum())
        due = is_marker & batches.has_delete_horizon
        summary.add_horizons(batches.base_timestamps_ms[due], batches.base_offsets[due])
        summary.aborted_batches += int((batches.is_aborted(aborted) & (counts > 0)).sum())
        is_event = batches.is_transactional & (is_marker | ~batches.is_control)
        if bool(is_event.any()):
            kinds = np.where(is_marker[is_event], EVENT_MARKER, EVENT_DATA)
            deltas = batches.base_offsets[is_event] - self._base_offset
            self._events.append(np.stack([batches.producer_ids[is_event], deltas, kinds], axis=1))

    def _add_rows(self, columns: Columns) -> None:
        assert columns.keys is not None
        assert columns.values is not None
        summary, keys, values = self.summary, columns.keys, columns.values
        entries = hash_keys(columns, self._base_offset, self._secret)
        count = len(entries)
        is_tombstone = (values.lengths < 0) & (keys.lengths >= 0)
        if bool(is_tombstone.any()):
            rows = columns.batch_rows[is_tombstone]
            has_horizon = columns.batches.has_delete_horizon[rows]
            summary.bare_tombstones += int((~has_horizon).sum())
            due_ms = columns.batches.base_timestamps_ms[rows][has_horizon]
            summary.add_horizons(due_ms, columns.offsets[is_tombstone][has_horizon])
        summary.records += len(columns)
        summary.keyless += len(columns) - count
        summary.entries += count
        self._waiting.append(entries)
        self._waiting_count += count
        if self._waiting_count >= self._block_entries:
            self._write_block()

    def _write_block(self) -> None:
        entries = np.concatenate(self._waiting)
        self._waiting, self._waiting_count = [], 0
        counts = np.bincount(entries[:, 0] >> BUCKET_SHIFT, minlength=BUCKETS).astype("<u4")
        ends = np.cumsum(counts, dtype=np.int64)
        out = np.empty_like(entries)
        kernels.scatter(entries, BUCKET_SHIFT, ends - counts, out)
        data = out.astype("<u4", copy=False).data.cast("B")
        crcs = [crc32c(bucket) for bucket in _buckets(data, ends)]
        self._index.append(counts.tobytes() + np.array(crcs, "<u4").tobytes())
        self._file.write(data)

    def finish(self) -> Summary:
        """Write the remaining entries and the trailer, then rename the file to its final name."""
        if self._waiting_count:
            self._write_block()
        events = np.concatenate(self._events) if self._events else np.empty((0, 3), np.int64)
        about = {
            "version": _VERSION,
            "topic_id": self._topic_id,
            "secret": fingerprint(self._secret),
            "base_offset": self._base_offset,
            "blocks": len(self._index),
            "events": len(events),
            "summary": asdict(self.summary),
        }
        text = json.dumps(about).encode()
        tail = b"".join(self._index) + events.astype("<i8").tobytes() + text
        self._file.write(tail + _TRAILER.pack(len(text), crc32c(tail), _MAGIC))
        self._file.close()
        self._temporary.rename(self._path)
        return self.summary

    def discard(self) -> None:
        """Close and delete the temporary file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def hash_keys(columns: Columns, base_offset: int, secret: Words) -> Entries:
    """Return the entries of the rows that have a key."""
    assert columns.keys is not None
    assert columns.values is not None
    entries = np.empty((len(columns), ENTRY_WORDS), np.uint32)
    count = kernels.digest_keys(
        (readonly(columns.keys.data), columns.keys.starts, columns.keys.lengths),
        columns.values.lengths, columns.offsets, base_offset, secret, entries,
    )  # fmt: skip
    return entries[:count]


# --- reading --------------------------------------------------------------------------------


class Digest:
    """A digest file: its summary and, read on demand, its entries by bucket."""

    def __init__(self, path: Path, about: Mapping[str, Any], tail: bytes) -> None:
        self.path = path
        self.base_offset = int(about["base_offset"])
        summary = about["summary"]
        horizons = [(int(due_ms), int(first)) for due_ms, first in summary["horizons"]]
        self.summary = Summary(**{**summary, "horizons": horizons})
        blocks = int(about["blocks"])
        index = np.frombuffer(tail, "<u4", blocks * 2 * BUCKETS).reshape(blocks, 2, BUCKETS)
        self._counts = index[:, 0, :].astype(np.int64)
        self._crcs = index[:, 1, :]
        events = np.frombuffer(tail, "<i8", 3 * int(about["events"]), blocks * _INDEX_BYTES)
        self.events = events.reshape(-1, 3)

    def count(self, low: int, high: int) -> int:
        """Return the number of entries in buckets ``[low, high)``."""
        return int(self._counts[:, low:high].sum())

    def entries(self, low: int, high: int) -> Entries:
        """Return the entries of buckets ``[low, high)``; those of one key are in log order."""
        parts = []
        with self.path.open("rb") as file:
            block_position = 0
            for counts, crcs in zip(self._counts, self._crcs, strict=True):
                start = block_position + 4 * ENTRY_WORDS * int(counts[:low].sum())
                size_bytes = 4 * ENTRY_WORDS * int(counts[low:high].sum())
                data = os.pread(file.fileno(), size_bytes, start)
                self._check(data, counts[low:high], crcs[low:high])
                parts.append(np.frombuffer(data, "<u4").reshape(-1, ENTRY_WORDS))
                block_position += 4 * ENTRY_WORDS * int(counts.sum())
        return np.concatenate(parts) if parts else np.empty((0, ENTRY_WORDS), np.uint32)

    def _check(self, data: bytes, counts: Longs, crcs: Any) -> None:
        sums = [crc32c(bucket) for bucket in _buckets(memoryview(data), np.cumsum(counts))]
        if len(data) != 4 * ENTRY_WORDS * int(counts.sum()) or sums != crcs.tolist():
            raise DamagedDigest(f"{self.path} does not match its checksums")


def _buckets(data: memoryview, ends: Longs) -> Iterator[memoryview]:
    """Yield the bytes of each bucket; ``ends`` are in entries, not bytes."""
    for start, end in pairwise([0, *(4 * ENTRY_WORDS * ends).tolist()]):
        yield data[start:end]


def read_digest(path: Path, topic_id: str, secret: Words) -> Digest | None:
    """Open a digest; None if it is missing, damaged, or of another topic id, secret or version."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            trailer_start = size_bytes - _TRAILER.size
            length, crc, magic = _TRAILER.unpack(
                os.pread(file.fileno(), _TRAILER.size, trailer_start)
            )
            if magic != _MAGIC:
                return None
            text = os.pread(file.fileno(), length, trailer_start - length)
            about = json.loads(text)
            tail_bytes = about["blocks"] * _INDEX_BYTES + 24 * about["events"] + length
            tail = os.pread(file.fileno(), tail_bytes, trailer_start - tail_bytes)
        if crc32c(tail) != crc or about["version"] != _VERSION:
            return None
        if (about["topic_id"], about["secret"]) != (topic_id, fingerprint(secret)):
            return None
        return Digest(path, about, tail)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


# --- as a task ------------------------------------------------------------------------------


class DigestTask(NamedTuple):
    """One segment to make a digest of."""

    source: DigestSource
    path: str
    topic_id: str
    aborted: tuple[Aborted, ...]
    secret: bytes
    chunk_bytes: int = CHUNK_BYTES


def make_digest(task: DigestTask) -> Summary:
    """Read a segment, hash its keys and write its digest."""
    secret = parse_secret(task.secret)
    writer = DigestWriter(Path(task.path), task.topic_id, task.source.base_offset, secret)
    try:
        for data in read_chunks(task.source, task.chunk_bytes):
            writer.add(data, task.aborted)
        return writer.finish()
    except CorruptBatch as error:
        writer.discard()
        raise CorruptionError(
            f"{task.source.path}: {error}; restore this segment from a copy"
        ) from error
    except BaseException:
        writer.discard()
        raise
