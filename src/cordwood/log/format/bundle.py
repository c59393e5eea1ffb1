"""Read an archive bundle: a gzipped tar whose ``.log`` member is a run of record batches.

Used wherever a bundle is verified by reading it: by the task that wrote it, by the broker before
RECLAIM relies on it, and by a restore. ``bundle_writer`` writes bundles.

Everything streams: a bundle of any size needs memory for one block only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np

from cordwood.batch.header_table import HeaderTable, Longs, WalkEnd, walk_batches
from cordwood.decide.archive import Span
from cordwood.errors import CorruptionError
from cordwood.log.format.layout import FileKind, file_name
from cordwood.model import TopicPartition

READ_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 256 << 20  # more than any batch a broker accepts
TAR_BYTES: Final = 1 << 20  # buffer between tar and gzip


def _quickest_gzip() -> tuple[Any, Any, int]:
    """The fastest gzip file class, its error, and the best level for it (docs/archive.md).

    ISA-L takes a quarter of the time and comes with ``cordwood[spark]``; bundles can be read
    without it.
    """
    try:
        from isal import igzip, isal_zlib
    except ImportError:
        return gzip.GzipFile, zlib.error, 1
    return igzip.IGzipFile, isal_zlib.error, 2


GzipFile, GzipError, GZIP_LEVEL = _quickest_gzip()


@dataclass(slots=True)
class BundleTotals:
    """Counts and times of a bundle's records, added up run by run."""

    records: int = 0  # without transaction markers
    first_ms: int = -1  # -1 without records
    newest_ms: int = -1
    transactional: bool = False

    def add_batches(self, batches: HeaderTable) -> None:
        """Count the records of a run of batches."""
        self.transactional |= bool(batches.is_transactional.any())
        self.records += int(batches.counts[~batches.is_control].sum())

    def add_times(self, timestamps_ms: Longs) -> None:
        """Widen the time range to these records' timestamps."""
        if len(timestamps_ms):
            first_ms = int(timestamps_ms.min())
            self.first_ms = first_ms if self.first_ms < 0 else min(first_ms, self.first_ms)
            self.newest_ms = max(self.newest_ms, int(timestamps_ms.max()))


def digest(source: IO[bytes]) -> str:
    """The sha256 of a file, read in blocks."""
    sha256 = hashlib.sha256()
    while block := source.read(READ_BYTES):
        sha256.update(block)
    return sha256.hexdigest()


@contextmanager
def proving(source: IO[bytes], name: str, sha256: str) -> Iterator[IO[bytes]]:
    """Yield the file for reading; raises ``CorruptionError`` at the end if its sha256 differs.

    A wrong sha256 takes precedence over any error that reading the file raised.
    """
    raw = _Summing(source)
    reader = io.BufferedReader(raw, TAR_BYTES)
    problem: CorruptionError | None = None
    try:
        yield reader
    except CorruptionError as error:
        problem = error
    while reader.read(READ_BYTES):
        pass
    if raw.sha256 != sha256:
        raise CorruptionError(
            f"{name}: its sha256 is {raw.sha256[:12]}…, but {sha256[:12]}… was written"
        )
    if problem is not None:
        raise problem


class _Summing(io.RawIOBase):
    """A file that computes the sha256 of everything read from it."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._sum.update(data)
        buffer[: len(data)] = data
        return len(data)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()


def read_batches(source: IO[bytes], tp: TopicPartition, span: Span) -> Iterator[bytes]:
    """Yield the bundle's batches in runs of whole batches; raises ``CorruptionError``."""
    wanted = f"{tp}/{file_name(span.start, FileKind.LOG)}"
    try:
        with (
            GzipFile(fileobj=source) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|", bufsize=TAR_BYTES) as tar,
        ):
            for member in tar:
                if member.name == wanted:
                    content = tar.extractfile(member)
                    if content is None:
                        raise CorruptionError(f"{wanted} in the bundle of {tp} is not a file")
                    yield from whole_batches(content, wanted)
                    return
    except (GzipError, tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise CorruptionError(f"the bundle of {tp} from seq {span.start + 1}: {error}") from None
    raise CorruptionError(f"the bundle of {tp} has no {wanted}")


def whole_batches(
    content: IO[bytes], name: str, *, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[bytes]:
    """Yield runs of whole batches from an untrusted stream, with bounded memory."""
    pending = b""
    while block := content.read(READ_BYTES):
        pending += block
        walk = walk_batches(pending, verify=False)
        if walk.end is WalkEnd.CORRUPT or len(pending) - walk.valid_bytes > batch_bytes_max:
            raise CorruptionError(f"{name} has bytes that are not a record batch")
        if walk.valid_bytes:
            yield pending[: walk.valid_bytes]
            pending = pending[walk.valid_bytes :]
    if pending:
        raise CorruptionError(f"{name} ends inside a batch")


def checked_runs(
    source: IO[bytes], tp: TopicPartition, span: Span
) -> Iterator[tuple[bytes, HeaderTable]]:
    """Yield runs of whole batches with valid checksums and ascending offsets inside the span."""
    reached = span.start
    for data in read_batches(source, tp, span):
        walk = walk_batches(data)
        if walk.end is not WalkEnd.CLEAN:
            raise CorruptionError(
                f"the bundle of {tp} from seq {span.start + 1}: a batch behind offset {reached} "
                "does not match its checksum"
            )
        batches = walk.batches
        ends = batches.last_offsets + 1
        is_bad = (batches.base_offsets < np.append(reached, ends[:-1])) | (ends > span.end)
        is_bad |= ends <= batches.base_offsets
        if bool(is_bad.any()):
            offset = int(batches.base_offsets[int(np.argmax(is_bad))])
            raise CorruptionError(f"the bundle of {tp} holds offset {offset}")
        yield data, batches
        reached = int(ends[-1])


def count_records(source: IO[bytes], tp: TopicPartition, span: Span) -> int:
    """Check the whole bundle like ``checked_runs``; returns its records, without markers."""
    totals = BundleTotals()
    for _, batches in checked_runs(source, tp, span):
        totals.add_batches(batches)
    return totals.records
