"""Encodes ingress lines as batches ready to append: whole chunks, never single lines.

    line     = routing_key "|" timestamp "|" n "|" payload [ CR ] LF
    routing_key  1 … 249 bytes, no "|" and no control character (below 32, or 127)
    timestamp    decimal digits, below 2**63: the producer's clock, kept as text in header "ts"
    n            decimal digits, below 2**63: the producer's count, kept as text in header "n"
    payload      any bytes but LF, "|" included; may be empty

The record's key is the routing key, its value the payload, its timestamp the broker's. Blank lines
are ignored. An invalid line is reported with its byte range and the reason; the other lines are not
affected.

With a producer (``HELLO``) the batches carry its id, epoch and sequence, ``n`` mod 2**31. A line
whose ``n`` is not newer than the last one, by serial-number arithmetic, was stored before and is
dropped. A batch ends where the next ``n`` is not the previous one plus 1, so the last ``n`` can be
recovered from the batch headers in the log.

Two implementations give identical results: a numba kernel, and plain Python until the kernels are
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cordwood.batch.header import HEADER_BYTES, SEQUENCE_MODULUS, Buffer
from cordwood.batch.kernels.loader import kernels, kernels_ready, load_kernels
from cordwood.batch.records import frame_batch, put_varint
from cordwood.model import NO_PRODUCER

__all__ = [
    "BATCH_BYTES_MAX",
    "REASONS",
    "BlockResult",
    "LineBatch",
    "LineBatches",
    "LineProducer",
    "Rejected",
    "count_lines",
    "encode_blocks",
    "encode_frames",
    "encode_lines",
    "encode_lines_plain",
    "kernels_ready",
    "load_kernels",
]

BATCH_BYTES_MAX: Final = 1024 * 1024
REASONS: Final = {
    1: "expected routing_key|timestamp|n|payload: there are fewer than three |",
    2: "the routing key is empty",
    3: "the routing key is longer than 249 bytes",
    4: "the routing key has a control character",
    5: "the timestamp is not a whole number from 0 to 2**63 - 1",
    6: "n is not a whole number from 0 to 2**63 - 1",
}
_NEWLINE: Final = 10
_SMALL_BYTES: Final = 1024  # below this size, plain counting beats a kernel call
_NO_N: Final = -1
_CONTROL: Final = bytes(range(32)) + b"\x7f"
_KEY_BYTES_MAX: Final = 249
_DIGITS_MAX: Final = 19
_INT64_END: Final = 2**63


class LineProducer(NamedTuple):
    """A producer of numbered lines, and its newest ``n`` that is stored or being stored.

    ``last_n`` matters only modulo 2**31, so the last sequence found in the log is sufficient.
    """

    producer_id: int
    epoch: int
    last_n: int | None


_NOBODY: Final = LineProducer(NO_PRODUCER, NO_PRODUCER, None)


class Rejected(NamedTuple):
    """An invalid line: ``chunk[start:end]``, without its newline."""

    start: int
    end: int
    reason: str


class LineBatch(NamedTuple):
    """The result of encoding one chunk; ``last_n`` is valid once the append is accepted."""

    data: bytearray  # complete batches with base offsets from 0; empty without records
    count: int  # type: ignore[assignment]  # records; hides tuple.count, which is not needed here
    rejected: list[Rejected]
    duplicates: int
    last_n: int | None  # the producer's newest n; unchanged if no line was newer


class BlockResult(NamedTuple):
    """The result of one block among several; fields as in ``LineBatch``."""

    end: int  # where its batches end in the joint data
    records: int
    rejected: list[Rejected]
    duplicates: int
    last_n: int | None


class LineBatches(NamedTuple):
    """The result of several blocks: their batches in sequence, and the result of each."""

    data: bytearray
    blocks: list[BlockResult]

    @property
    def is_plain(self) -> bool:
        """Whether every block has records, and none has rejected or duplicate lines."""
        return not any(
            block.rejected or block.duplicates or not block.records for block in self.blocks
        )

    def each(self) -> list[LineBatch]:
        """The result of each block with its own batches."""
        if len(self.blocks) == 1:
            return [LineBatch(self.data, *self.blocks[0][1:])]
        ends = [0, *(block.end for block in self.blocks)]
        return [
            LineBatch(self.data[start : block.end], *block[1:])
            for start, block in zip(ends, self.blocks, strict=False)
        ]


def count_lines(block: Buffer) -> int:
    """The number of newlines; for a large block ``bytes.count`` takes forty times as long."""
    if len(block) < _SMALL_BYTES or not kernels_ready():
        return bytes(block).count(b"\n")
    return int(kernels().count_lines(_read_only(block)))


def encode_lines(
    chunk: Buffer,
    now_ms: int,
    *,
    producer: LineProducer | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> LineBatch:
    """Encode one block of complete lines."""
    blocks = encode_blocks([(chunk, producer)], now_ms, batch_bytes_max=batch_bytes_max)
    return blocks.each()[0]


def encode_blocks(
    blocks: Sequence[tuple[Buffer, LineProducer | None]],
    now_ms: int,
    *,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> LineBatches:
    """Encode blocks of complete lines, each with its own producer; uses the kernel once loaded.

    A batch ends before it would exceed ``batch_bytes_max``; a longer line gets its own batch. A
    kernel call costs as much as encoding fifty lines, so one call takes many blocks.
    """
    if kernels_ready():
        return _encode_by_kernel(blocks, now_ms, batch_bytes_max)
    data = bytearray()
    results: list[BlockResult] = []
    for chunk, producer in blocks:
        batch = encode_lines_plain(
            chunk, now_ms, producer=producer, batch_bytes_max=batch_bytes_max
        )
        data += batch.data
        results.append(BlockResult(len(data), *batch[1:]))
    return LineBatches(data, results)


def _encode_by_kernel(
    blocks: Sequence[tuple[Buffer, LineProducer | None]], now_ms: int, batch_bytes_max: int
) -> LineBatches:
    import numpy as np  # loaded with the kernels, to keep start-up fast

    kernel = kernels()
    chunk = blocks[0][0] if len(blocks) == 1 else b"".join([chunk for chunk, _ in blocks])
    lines = _read_only(chunk)
    assert not len(lines) or lines[-1] == _NEWLINE, "only complete lines are encoded"
    count = kernel.count_lines(lines)
    bytes_max = len(lines) + count * kernel.LINE_OVERHEAD
    # A full batch and the first record of the next one together exceed the limit.
    is_roomy = batch_bytes_max >= 4 * HEADER_BYTES and all(who is None for _, who in blocks)
    batches_max = len(blocks) + 4 * bytes_max // batch_bytes_max if is_roomy else count
    data = bytearray(bytes_max + batches_max * HEADER_BYTES + kernel.WIDE)
    rows = np.array(_block_rows(blocks), np.int64)
    header = np.zeros((1, kernel.TABLE_FIELDS), np.int64)
    header[0, kernel.BASE_TIME] = header[0, kernel.MAX_TIME] = now_ms
    rejected = np.empty(3 * count, np.int64)
    out = np.frombuffer(data, np.uint8)
    size = kernel.encode_lines(lines, rows, batch_bytes_max, header, out, rejected)
    del out  # a bytearray with an exported buffer cannot shrink
    del data[size:]
    return LineBatches(data, _block_results(rows.tolist(), rejected))


def _read_only(block: Buffer) -> Any:
    """The bytes as a read-only array, the type the kernels take."""
    import numpy as np

    lines = np.frombuffer(block, np.uint8)
    lines.flags.writeable = False
    return lines


def _block_rows(
    blocks: Sequence[tuple[Buffer, LineProducer | None]],
) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """The kernel's input table, one row per block."""
    rows = []
    end = 0
    for chunk, producer in blocks:
        end += len(chunk)
        producer_id, epoch, last_n = producer or _NOBODY
        rows.append((end, producer_id, epoch, _NO_N if last_n is None else last_n, 0, 0, 0, 0))
    return rows


def _block_results(rows: list[list[int]], rejected: Any) -> list[BlockResult]:
    """The results that the kernel wrote for each block."""
    results = []
    first = 0
    for _, _, _, last_n, end, records, refused, duplicates in rows:
        refusals = _refusals(rejected[3 * first : 3 * (first + refused)]) if refused else []
        newest = None if last_n == _NO_N else last_n
        results.append(BlockResult(end, records, refusals, duplicates, newest))
        first += refused
    return results


def _refusals(rejected: Any) -> list[Rejected]:
    return [
        Rejected(start, end, REASONS[reason])
        for start, end, reason in rejected.reshape(-1, 3).tolist()
    ]


# --- plain-Python implementation ------------------------------------------------------------


class _Fields(NamedTuple):
    key: bytes
    timestamp: bytes
    n: bytes
    payload: bytes


def encode_lines_plain(
    chunk: Buffer,
    now_ms: int,
    *,
    producer: LineProducer | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> LineBatch:
    """The same in plain Python: about twenty times slower, with identical bytes."""
    building = _Building(now_ms, producer, batch_bytes_max)
    start = 0
    text = bytes(chunk)
    assert not text or text.endswith(b"\n"), "only complete lines are encoded"
    for line in text.split(b"\n")[:-1]:
        end = start + len(line)
        building.take(line.removesuffix(b"\r"), start, end)
        start = end + 1
    return building.finish()


def encode_frames(
    bodies: Sequence[bytes],
    now_ms: int,
    *,
    producer: LineProducer | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> LineBatch:
    """Encode the bodies of frames: like lines, but a payload may contain newlines.

    Rejected bodies are reported by their position in the concatenated ``bodies``.
    """
    building = _Building(now_ms, producer, batch_bytes_max)
    start = 0
    for body in bodies:
        building.take(body, start, start + len(body))
        start += len(body)
    return building.finish()


def _parse_line(line: bytes) -> _Fields | int | None:
    """The four fields, the number of the reason for rejection, or None for a blank line."""
    if not line:
        return None
    parts = line.split(b"|", 3)
    if len(parts) < 4:
        return 1
    fields = _Fields(*parts)
    if not fields.key:
        return 2
    if len(fields.key) > _KEY_BYTES_MAX:
        return 3
    if len(fields.key.translate(None, _CONTROL)) < len(fields.key):
        return 4
    if not _is_number(fields.timestamp):
        return 5
    if not _is_number(fields.n):
        return 6
    return fields


def _is_number(text: bytes) -> bool:
    if not text.isdigit():
        return False
    digits = text.lstrip(b"0")
    return len(digits) < _DIGITS_MAX or (len(digits) == _DIGITS_MAX and int(digits) < _INT64_END)


def _varint(number: int) -> bytes:
    out = bytearray()
    put_varint(out, number)
    return bytes(out)


_VARINTS: Final = [_varint(number) for number in range(1024)]  # most lengths are short


def _encode_line(fields: _Fields, delta: int) -> bytes:
    """The record of a line, with an offset delta in its batch."""
    key, timestamp, n, payload = (
        _VARINTS[len(part)] + part if len(part) < len(_VARINTS) else _varint(len(part)) + part
        for part in fields
    )
    body = b"".join((b"\0\0", _varint(delta), key, payload, b"\x04\x04ts", timestamp, b"\x02n", n))
    return _varint(len(body)) + body


class _Building:
    """The finished batches, and the open one."""

    def __init__(self, now_ms: int, producer: LineProducer | None, batch_bytes_max: int) -> None:
        self.data = bytearray()
        self.base_offset = 0
        self.last_n = producer.last_n if producer else None
        self._now_ms = now_ms
        self._producer = producer
        self._body_bytes_max = batch_bytes_max - HEADER_BYTES
        self._body = bytearray()
        self._count = 0
        self._base_sequence = NO_PRODUCER
        self._rejected: list[Rejected] = []
        self._duplicates = 0

    def take(self, line: bytes, start: int, end: int) -> None:
        """Process one line, at ``start`` to ``end`` of the input."""
        fields = _parse_line(line)
        if isinstance(fields, int):
            self._rejected.append(Rejected(start, end, REASONS[fields]))
        elif fields is not None:
            self._duplicates += not self.add(fields)

    def finish(self) -> LineBatch:
        """End the open batch and return the result."""
        self.close()
        return LineBatch(self.data, self.base_offset, self._rejected, self._duplicates, self.last_n)

    def add(self, fields: _Fields) -> bool:
        """Add a parsed line; False if its ``n`` is a duplicate."""
        is_next = True
        n = int(fields.n.lstrip(b"0") or b"0")
        if self._producer is not None:
            distance = (n - (self.last_n or 0)) % SEQUENCE_MODULUS
            if self.last_n is not None and (distance == 0 or distance >= SEQUENCE_MODULUS // 2):
                return False
            is_next = self.last_n is not None and distance == 1
            self.last_n = n
        record = _encode_line(fields, self._count)
        is_full = len(self._body) + len(record) > self._body_bytes_max
        if self._count and (is_full or not is_next):
            self.close()
            record = _encode_line(fields, 0)
        if not self._count and self._producer is not None:
            self._base_sequence = n % SEQUENCE_MODULUS
        self._body += record
        self._count += 1
        return True

    def close(self) -> None:
        """Finish the open batch, if there is one."""
        if not self._count:
            return
        producer = self._producer or _NOBODY
        self.data += frame_batch(
            self._body,
            base_offset=self.base_offset,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=self._count - 1,
            base_timestamp_ms=self._now_ms,
            max_timestamp_ms=self._now_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self._base_sequence,
            count=self._count,
        )
        self.base_offset += self._count
        self._body = bytearray()
        self._count = 0
