"""One bundle: a gzipped tar (POSIX pax) of a partition's batches, and how it is read again.

    <topic>-<partition>/<20-digit offset>.log   the record batches, as a segment file holds them
    <topic>-<partition>/<20-digit offset>.txt   the same records as ``cordwood cat`` prints them
    bundle.json                                 what the bundle says of itself

The ``.log`` is what a restore reads; the ``.txt`` is for people who have nothing but ``tar``. The
same records give the same bytes, whenever and wherever they are written, so a run that is repeated
makes the same bundle.

Everything streams: a bundle needs disk for a temporary copy, and memory for a chunk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final, NamedTuple

from cordwood.batch.header import Buffer, is_crc_valid, parse_header, parse_headers
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.decide.archive import FORMAT_VERSION, Span
from cordwood.errors import CorruptionError
from cordwood.log.layout import Kind, file_name
from cordwood.log.scan import Walk, read_from
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.segments import Chunk
from cordwood.wire.line.framing import Framing
from cordwood.wire.line.records import encode_records

ABOUT: Final = "bundle.json"
LINES: Final = ".txt"
READ_BYTES: Final = 4 << 20
_GZIP_LEVEL: Final = 6


class Facts(NamedTuple):
    """What is in a bundle."""

    records: int
    first_ms: int  # -1 without records
    newest_ms: int
    size_bytes: int
    sha256: str
    transactional: bool


class _Hashing:
    """A file that sums what is written to it."""

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
    target: IO[bytes], tp: TopicPartition, span: Span, chunks: Iterable[Chunk], *, lines: bool
) -> Facts:
    """Write the bundle of ``span``; ``chunks`` may hold more at either end."""
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as text:
        records, first_ms, newest_ms, transactional = 0, -1, -1, False
        for data, found in _trimmed(chunks, span):
            log.write(data)
            transactional |= parse_header(data).is_transactional
            if lines:
                text.write(encode_records(found, Framing.TEXT))
            times = [record.timestamp_ms for record in found]
            records += len(times)
            newest_ms = max([newest_ms, *times])
            first_ms = min([*([first_ms] if first_ms >= 0 else []), *times], default=-1)
        about = {
            "format": FORMAT_VERSION,
            "topic": tp.topic,
            "partition": tp.partition,
            "first_seq": span.start + 1,
            "last_seq": span.end,
            "records": records,
        }
        hashing = _Hashing(target)
        base = f"{tp}/{span.start:020d}"
        told = (json.dumps(about, sort_keys=True) + "\n").encode()
        members: dict[str, IO[bytes]] = {
            ABOUT: io.BytesIO(told),
            base + Kind.LOG: log,
            base + LINES: text,
        }
        _write_tar(hashing, {n: m for n, m in members.items() if lines or m is not text})
    return Facts(records, first_ms, newest_ms, hashing.size_bytes, hashing.sha256, transactional)


def _write_tar(target: Any, members: Mapping[str, IO[bytes]]) -> None:
    with (
        gzip.GzipFile("", "wb", _GZIP_LEVEL, target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in members.items():
            _add(tar, name, content)


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    """A member without a time or an owner: both would make equal bundles differ."""
    info = tarfile.TarInfo(name)
    info.size = content.seek(0, io.SEEK_END)
    content.seek(0)
    tar.addfile(info, content)


def _trimmed(chunks: Iterable[Chunk], span: Span) -> Iterator[tuple[Buffer, list[Record]]]:
    """The batches inside the span, those at its edges divided, and the records for readers."""
    for chunk in chunks:
        position = 0
        for header in parse_headers(chunk.data):
            end = position + header.size_bytes
            data: Buffer = memoryview(chunk.data)[position:end]
            if not is_crc_valid(chunk.data, position, header):
                raise CorruptionError(
                    f"the batch at offset {header.base_offset} contradicts its checksum; run "
                    "`cordwood segment verify`"
                )
            position = end
            if header.end_offset <= span.start or header.base_offset >= span.end:
                continue
            records = decode_batch(data)
            if header.base_offset < span.start or header.end_offset > span.end:
                data, records = _divided(data, records, span)
            yield data, [] if header.is_control else records


def _divided(data: Buffer, records: list[Record], span: Span) -> tuple[bytes, list[Record]]:
    """The part of a batch inside the span, with everything else its header said."""
    (header,) = parse_headers(data)
    first = max(header.base_offset, span.start)
    last = min(header.last_offset, span.end - 1)
    kept = [record for record in records if first <= record.offset <= last]
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + first - header.base_offset) % 2**31
    horizon_ms = header.base_timestamp_ms if header.has_delete_horizon else None
    return (
        encode_batch(
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
        ),
        kept,
    )


# --- reading --------------------------------------------------------------------------------


def digest(source: IO[bytes]) -> str:
    """The sha256 of a file, read in blocks."""
    found = hashlib.sha256()
    while block := source.read(READ_BYTES):
        found.update(block)
    return found.hexdigest()


def read_batches(source: IO[bytes], tp: TopicPartition, span: Span) -> Iterator[bytes]:
    """The bundle's batches in runs of whole ones; raises ``CorruptionError``."""
    wanted = f"{tp}/{file_name(span.start, Kind.LOG)}"
    try:
        with tarfile.open(fileobj=source, mode="r|gz") as tar:
            for member in tar:
                if member.name == wanted:
                    content = tar.extractfile(member)
                    assert content is not None, "a file has content"
                    yield from _whole_batches(content, wanted)
                    return
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise CorruptionError(f"the bundle of {tp} from seq {span.start + 1}: {error}") from None
    raise CorruptionError(f"the bundle of {tp} has no {wanted}")


def _whole_batches(content: IO[bytes], name: str) -> Iterator[bytes]:
    """Runs of whole batches out of a stream."""
    from cordwood.pipeline.segments import whole_batches

    pending = b""
    while block := content.read(READ_BYTES):
        pending += block
        cut, _ = whole_batches(pending, 2**63 - 1)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        raise CorruptionError(f"{name} ends in the middle of a batch")


def check_bundle(source: IO[bytes], tp: TopicPartition, span: Span) -> int:
    """Read it through: every checksum right, every offset inside; how many records it holds."""
    records, reached = 0, span.start
    for data in read_batches(source, tp, span):
        walk = Walk(read_from(data), len(data), reached)
        for located in walk:
            header = located.header
            if not (reached <= header.base_offset and header.end_offset <= span.end):
                raise CorruptionError(f"the bundle of {tp} holds offset {header.base_offset}")
            records += 0 if header.is_control else header.count
            reached = header.end_offset
        if walk.problem:
            raise CorruptionError(f"the bundle of {tp} from seq {span.start + 1}: {walk.problem}")
    return records
