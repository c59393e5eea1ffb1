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
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordwood.batch.columns import Aborted, Columns, decode_columns
from cordwood.batch.header import CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT, Buffer, crc32c
from cordwood.batch.header_table import HeaderTable, Longs, WalkEnd, readonly, walk_batches
from cordwood.config import MIB
from cordwood.errors import CorruptBatch, CorruptionError, DamagedDigest, StaleManifest
from cordwood.log.files.modes import make_shared_directory, open_shared, write_shared
from cordwood.log.format.producers import Aborted as AbortedEntry

CLEANER_NAME: Final = "cleaner"
SUFFIX: Final = ".keys"
CHUNK_BYTES: Final = 8 * MIB
BUCKETS: Final = 1024
BUCKET_SHIFT: Final = 22  # applied to the highest 32 bits of the hash
ENTRY_WORDS: Final = 5
BLOCK_ENTRIES: Final = 1 << 20  # sorted in one block, so memory does not grow with the segment
TOMBSTONE: Final = 0x80000000
DELTA: Final = 0x7FFFFFFF
EVENT_DATA: Final = 0
EVENT_MARKER: Final = 1
_VERSION: Final = 1
_MAGIC: Final = b"CWKEYS01"
_TRAILER: Final = struct.Struct("<II8s")  # JSON length, checksum of all but the entries, magic
_INDEX_BYTES: Final = 8 * BUCKETS  # per block: counts, then checksums

Entries = NDArray[np.uint32]
Words = NDArray[np.uint64]


class DigestSource(NamedTuple):
    """A segment's log file, identified by size and mtime: a replaced file is a different source."""

    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    mtime_ns: int

    @property
    def digest_name(self) -> str:
        """File name of this source's digest."""
        return f"{self.base_offset:020d}-{self.size_bytes}-{self.mtime_ns}{SUFFIX}"


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
        found = dict(self.horizons)
        times, firsts = np.unique(due_ms, return_index=True)
        for time_ms, first in zip(times.tolist(), firsts.tolist(), strict=True):
            found[time_ms] = min(found.get(time_ms, 2**63), int(offsets[first]))
        self.horizons = sorted(found.items())


def kernels() -> ModuleType:
    """Return the digest kernels, loaded on first use."""
    from cordwood.batch.kernels import digests as digest_kernels

    return digest_kernels


def open_source(path: Path, base_offset: int, end_offset: int, size_bytes: int) -> DigestSource:
    """Identify a segment's log; raises ``StaleManifest`` if it is gone or has another size."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise StaleManifest(f"{path} is gone: the log has changed; run the job again") from None
    if stat.st_size != size_bytes:
        raise StaleManifest(f"{path} has {stat.st_size} bytes, not {size_bytes}; run it again")
    return DigestSource(str(path), base_offset, end_offset, size_bytes, stat.st_mtime_ns)


def read_chunks(source: DigestSource, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Yield the source's batches in runs of whole batches, each of about ``chunk_bytes``.

    Runs share one buffer: use a run before asking for the next. Raises ``StaleManifest`` if the
    file was replaced, and ``CorruptionError`` where a batch is damaged or incomplete.
    """
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StaleManifest(
            f"{source.path} is gone: the log has changed; run the job again"
        ) from None
    try:
        stat = os.fstat(fd)
        if (stat.st_size, stat.st_mtime_ns) != (source.size_bytes, source.mtime_ns):
            raise StaleManifest(f"{source.path} was replaced meanwhile; run the job again")
        yield from _whole_batches(fd, source, chunk_bytes)
    finally:
        os.close(fd)


def _whole_batches(fd: int, source: DigestSource, chunk_bytes: int) -> Iterator[memoryview]:
    room = memoryview(bytearray(min(chunk_bytes, source.size_bytes)))
    position = 0
    while position < source.size_bytes:
        data = room[: os.preadv(fd, [room], position)]
        walk = walk_batches(data, verify=False)
        if walk.valid_bytes == 0:
            reaches_end = position + len(data) >= source.size_bytes
            if walk.end is WalkEnd.CORRUPT or reaches_end:
                raise CorruptionError(
                    f"{source.path}: no whole batch at position {position}; restore this segment "
                    "from a copy"
                )
            room = memoryview(bytearray(2 * len(room)))  # a batch larger than a chunk
            continue
        yield data[: walk.valid_bytes]
        position += walk.valid_bytes


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

    def __init__(self, path: Path, topic_id: str, base_offset: int, secret: Words) -> None:
        self.summary = Summary()
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
        aborted = near(aborted, batches)
        columns = decode_columns(
            data, wanted=frozenset({"key", "value", "timestamp"}), aborted=aborted
        )
        self._note_batches(batches, aborted)
        self._note_rows(columns)
        return columns

    def _note_batches(self, batches: HeaderTable, aborted: Sequence[Aborted]) -> None:
        attributes, counts = batches.attributes, batches.counts
        summary = self.summary
        summary.empty_batches += int((counts == 0).sum())
        is_control = attributes & CONTROL_BIT != 0
        is_marker = is_control & (counts > 0)
        summary.markers += int(is_marker.sum())
        under = is_marker & (attributes & DELETE_HORIZON_BIT != 0)
        summary.add_horizons(batches.base_timestamps_ms[under], batches.base_offsets[under])
        summary.aborted_batches += int((is_aborted(batches, aborted) & (counts > 0)).sum())
        is_event = (attributes & TRANSACTIONAL_BIT != 0) & (is_marker | ~is_control)
        if bool(is_event.any()):
            kinds = np.where(is_marker[is_event], EVENT_MARKER, EVENT_DATA)
            deltas = batches.base_offsets[is_event] - self._base_offset
            self._events.append(np.stack([batches.producer_ids[is_event], deltas, kinds], axis=1))

    def _note_rows(self, columns: Columns) -> None:
        assert columns.keys is not None
        assert columns.values is not None
        summary, keys, values = self.summary, columns.keys, columns.values
        entries = np.empty((len(columns), ENTRY_WORDS), np.uint32)
        count = kernels().digest_keys(
            (readonly(keys.data), keys.starts, keys.lengths),
            values.lengths, columns.offsets, self._base_offset, self._secret, entries,
        )  # fmt: skip
        is_tombstone = (values.lengths < 0) & (keys.lengths >= 0)
        if bool(is_tombstone.any()):
            rows = columns.batch_rows[is_tombstone]
            has_horizon = columns.batches.attributes[rows] & DELETE_HORIZON_BIT != 0
            summary.bare_tombstones += int((~has_horizon).sum())
            due_ms = columns.batches.base_timestamps_ms[rows][has_horizon]
            summary.add_horizons(due_ms, columns.offsets[is_tombstone][has_horizon])
        summary.records += len(columns)
        summary.keyless += len(columns) - count
        summary.entries += count
        self._waiting.append(entries[:count])
        self._waiting_count += count
        if self._waiting_count >= BLOCK_ENTRIES:
            self._write_block()

    def _write_block(self) -> None:
        entries = np.concatenate(self._waiting)
        self._waiting, self._waiting_count = [], 0
        counts = np.bincount(entries[:, 0] >> BUCKET_SHIFT, minlength=BUCKETS).astype("<u4")
        ends = np.cumsum(counts, dtype=np.int64)
        out = np.empty_like(entries)
        kernels().scatter(entries, BUCKET_SHIFT, ends - counts, out)
        data = out.astype("<u4", copy=False).data.cast("B")
        crcs = [crc32c(bucket) for bucket in _buckets(data, ends)]
        self._index.append(counts.tobytes() + np.array(crcs, "<u4").tobytes())
        self._file.write(data)

    def finish(self) -> Summary:
        """Write the remaining entries and the trailer, then rename the file to its final name."""
        if self._waiting_count:
            self._write_block()
        events = np.concatenate(self._events) if self._events else np.empty((0, 3), np.int64)
        told = {
            "version": _VERSION,
            "topic_id": self._topic_id,
            "secret": fingerprint(self._secret),
            "base_offset": self._base_offset,
            "blocks": len(self._index),
            "events": len(events),
            "summary": asdict(self.summary),
        }
        text = json.dumps(told).encode()
        tail = b"".join(self._index) + events.astype("<i8").tobytes() + text
        self._file.write(tail + _TRAILER.pack(len(text), crc32c(tail), _MAGIC))
        self._file.close()
        self._temporary.rename(self._path)
        return self.summary

    def discard(self) -> None:
        """Close and delete the temporary file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def near(aborted: Sequence[Aborted], batches: HeaderTable) -> list[Aborted]:
    """Return the aborted transactions whose offsets overlap these batches."""
    if not len(batches) or not aborted:
        return []
    first, last = int(batches.base_offsets[0]), int(batches.last_offsets[-1])
    return [entry for entry in aborted if entry[1] <= last and entry[2] >= first]


def is_aborted(batches: HeaderTable, aborted: Sequence[Aborted]) -> Any:
    """Return a mask of the data batches that belong to these transactions."""
    found = np.zeros(len(batches), bool)
    is_data = (batches.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
    for producer_id, first_offset, last_offset in aborted:
        found |= (
            is_data
            & (batches.producer_ids == producer_id)
            & (batches.base_offsets >= first_offset)
            & (batches.base_offsets <= last_offset)
        )
    return found


# --- reading --------------------------------------------------------------------------------


class Digest:
    """A digest file: its summary and, read on demand, its entries by bucket."""

    def __init__(self, path: Path, told: Mapping[str, Any], tail: bytes) -> None:
        self.path = path
        self.base_offset = int(told["base_offset"])
        found = told["summary"]
        horizons = [(int(due_ms), int(first)) for due_ms, first in found["horizons"]]
        self.summary = Summary(**{**found, "horizons": horizons})
        blocks = int(told["blocks"])
        index = np.frombuffer(tail, "<u4", blocks * 2 * BUCKETS).reshape(blocks, 2, BUCKETS)
        self._counts = index[:, 0, :].astype(np.int64)
        self._crcs = index[:, 1, :]
        events = np.frombuffer(tail, "<i8", 3 * int(told["events"]), blocks * _INDEX_BYTES)
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
        found = [crc32c(bucket) for bucket in _buckets(memoryview(data), np.cumsum(counts))]
        if len(data) != 4 * ENTRY_WORDS * int(counts.sum()) or found != crcs.tolist():
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
            told = json.loads(text)
            tail_bytes = told["blocks"] * _INDEX_BYTES + 24 * told["events"] + length
            tail = os.pread(file.fileno(), tail_bytes, trailer_start - tail_bytes)
        if crc32c(tail) != crc or told["version"] != _VERSION:
            return None
        if (told["topic_id"], told["secret"]) != (topic_id, fingerprint(secret)):
            return None
        return Digest(path, told, tail)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def digest_name(path: Path) -> str:
    """Return the digest's file name for a live log; empty if the log no longer exists."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ""
    return DigestSource(str(path), int(path.stem), 0, stat.st_size, stat.st_mtime_ns).digest_name


# --- as a task ------------------------------------------------------------------------------


class DigestTask(NamedTuple):
    """One segment to make a digest of."""

    source: DigestSource
    path: str
    topic_id: str
    aborted: tuple[AbortedEntry, ...]
    secret: bytes


def make_digest(task: DigestTask) -> Summary:
    """Read a segment, hash its keys and write its digest."""
    secret = parse_secret(task.secret)
    writer = DigestWriter(Path(task.path), task.topic_id, task.source.base_offset, secret)
    aborted = [Aborted(*entry[:3]) for entry in task.aborted]
    try:
        for data in read_chunks(task.source):
            writer.add(data, aborted)
        return writer.finish()
    except CorruptBatch as error:
        writer.discard()
        raise CorruptionError(
            f"{task.source.path}: {error}; restore this segment from a copy"
        ) from error
    except BaseException:
        writer.discard()
        raise
