"""Write one bundle, a gzipped tar (POSIX pax) of a partition's batches.

    <topic>-<partition>/<20-digit offset>.log   the record batches, as a segment file holds them
    <topic>-<partition>/<20-digit offset>.txt   the same records as ``cordwood cat`` prints them
    bundle.json                                 topic, partition, seq range and record count

A restore reads the ``.log``; the ``.txt`` is for people who have nothing but ``tar``. The same
records always give the same tar, and with the same gzip library the same bundle.

Data is streamed: writing a bundle needs disk for a temporary copy and memory for one chunk.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import IO, Any, Final, NamedTuple

import numpy as np

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.header import Buffer, parse_header, parse_headers
from cordwood.batch.header_table import HeaderTable, WalkEnd, walk_batches
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.batch.subscriber_lines import format_columns
from cordwood.decide.archive import FORMAT_VERSION, Span
from cordwood.errors import CorruptionError
from cordwood.log.format.bundle import GZIP_LEVEL, TAR_BYTES, BundleTotals, GzipFile
from cordwood.log.format.layout import FileKind
from cordwood.model import TopicPartition

ABOUT: Final = "bundle.json"
LINES: Final = ".txt"
_TIMES: Final = frozenset({"timestamp"})
_WITH_LINES: Final = frozenset({"timestamp", "key", "value", "headers"})


class BundleStats(NamedTuple):
    """Counts, size and checksum of a bundle."""

    records: int
    first_ms: int  # -1 without records
    newest_ms: int
    size_bytes: int
    sha256: str
    transactional: bool


class _Hashing:
    """A file that computes the size and sha256 of what is written to it."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self._sha = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        self._sha.update(data)
        self.size_bytes += len(data)
        return self._inner.write(data)

    def flush(self) -> None:
        self._inner.flush()

    @property
    def sha256(self) -> str:
        return self._sha.hexdigest()


def write_bundle(
    target: IO[bytes], tp: TopicPartition, span: Span, chunks: Iterable[Buffer], *, lines: bool
) -> BundleStats:
    """Write the bundle of ``span``; ``chunks`` may extend past either end of it."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as text:
        totals = BundleTotals()
        for data in _trimmed(chunks, span):
            log.write(data)
            wanted = _WITH_LINES if lines else _TIMES
            columns = decode_columns(data, wanted=wanted, verify=False)
            assert columns.timestamps_ms is not None, "timestamps were wanted"
            totals.add_batches(walk_batches(data, verify=False).batches)
            totals.add_times(columns.timestamps_ms)
            if lines:
                text.write(format_columns(columns, is_framed=False))
        about = {
            "format": FORMAT_VERSION,
            "topic": tp.topic,
            "partition": tp.partition,
            "first_seq": span.start + 1,
            "last_seq": span.end,
            "records": totals.records,
        }
        hashing = _Hashing(target)
        base = f"{tp}/{span.start:020d}"
        members: dict[str, IO[bytes]] = {
            ABOUT: io.BytesIO((json.dumps(about, sort_keys=True) + "\n").encode()),
            base + FileKind.LOG: log,
            base + LINES: text,
        }
        _write_tar(hashing, {n: m for n, m in members.items() if lines or m is not text})
    return BundleStats(
        totals.records, totals.first_ms, totals.newest_ms, hashing.size_bytes, hashing.sha256,
        totals.transactional,
    )  # fmt: skip


def _write_tar(target: Any, members: Mapping[str, IO[bytes]]) -> None:
    with (
        GzipFile("", "wb", GZIP_LEVEL, target, mtime=0) as packed,
        tarfile.TarFile(
            mode="w", fileobj=packed, format=tarfile.PAX_FORMAT, copybufsize=TAR_BYTES
        ) as tar,
    ):
        for name, content in members.items():
            _add(tar, name, content)


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    """Add a member without mtime or owner: both would make equal bundles differ."""
    info = tarfile.TarInfo(name)
    info.size = content.seek(0, io.SEEK_END)
    content.seek(0)
    tar.addfile(info, content)


def _trimmed(chunks: Iterable[Buffer], span: Span) -> Iterator[Buffer]:
    """Yield the batches inside the span, in runs; batches across its edges are divided."""
    for chunk in chunks:
        data = memoryview(chunk)
        walk = walk_batches(data)
        if walk.end is not WalkEnd.CLEAN:
            header = parse_header(data, walk.valid_bytes)
            raise CorruptionError(
                f"the batch at offset {header.base_offset} does not match its checksum; run "
                "`cordwood segment verify`"
            )
        batches = walk.batches
        starts, ends = batches.base_offsets, batches.last_offsets + 1
        is_edge = ((starts < span.start) & (ends > span.start)) | (
            (starts < span.end) & (ends > span.end)
        )
        is_inside = (starts >= span.start) & (ends <= span.end)
        cuts = [0, *(np.flatnonzero(is_edge[1:] | is_edge[:-1]) + 1).tolist(), len(batches)]
        for first, last in pairwise(cuts):
            run = batches.chosen(slice(first, last))
            if not len(run):
                continue
            if is_edge[first]:
                yield _divided(_bytes_of(data, run), span)
            elif bool(is_inside[first:last].any()):
                yield _bytes_of(data, run.chosen(is_inside[first:last]))


def _bytes_of(data: memoryview, run: HeaderTable) -> memoryview:
    """Return the bytes of a run of neighbouring batches."""
    return data[int(run.positions[0]) : int(run.positions[-1] + run.sizes[-1])]


def _divided(data: Buffer, span: Span) -> bytes:
    """Encode the part of a batch inside the span, with the same producer, codec and flags."""
    (header,) = parse_headers(data)
    first = max(header.base_offset, span.start)
    last = min(header.last_offset, span.end - 1)
    kept = [record for record in decode_batch(data) if first <= record.offset <= last]
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + first - header.base_offset) % 2**31
    horizon_ms = header.base_timestamp_ms if header.has_delete_horizon else None
    return encode_batch(
        kept,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        base_offset=first,
        last_offset_delta=last - first,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=sequence,
        leader_epoch=header.leader_epoch,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=horizon_ms,
    )
