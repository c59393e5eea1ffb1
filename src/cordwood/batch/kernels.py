# mypy: ignore-errors
# ruff: noqa: ARG001, PLR0917
# Numba types these functions, by the signature above each and at compile time; read as plain Python
# their machine numbers make no sense to mypy. Nothing leaks: callers reach kernels through an
# untyped module. Codegen functions get their arguments by position, which ruff takes for unused.
"""Numba kernels over batch bytes: the loops that run once per record.

Only ``table``, ``columns``, ``arrow`` and ``lines`` call them, through ``warmth.kernels()``.
Importing this module compiles or loads every kernel (each has a fixed signature, so nothing
compiles later): seconds the first time ever, a few hundred milliseconds from numba's cache. All
release the GIL.

A kernel trusts no length, count or delta in the bytes: it checks before it reads, returns a
negative number for what cannot be, and leaves the explaining to the plain-Python twin. It never
allocates; the caller brings arrays that are large enough, by a bound it states.

All live in this one long file because of numba's cache: it is renewed when the file of a kernel
changes, but not when a file changes that the kernel's parts came from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding as llvm_binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

# Columns of a batch table: one int64 row per batch.
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LEADER_EPOCH: Final = 3
ATTRIBUTES: Final = 4
LAST_DELTA: Final = 5
BASE_TIME: Final = 6
MAX_TIME: Final = 7
PRODUCER_ID: Final = 8
PRODUCER_EPOCH: Final = 9
SEQUENCE: Final = 10
COUNT: Final = 11
TABLE_FIELDS: Final = 12

END_CLEAN: Final = 0
END_TORN: Final = 1
END_CORRUPT: Final = 2

# Which parts of a record a scan notes.
WANT_TIME: Final = 1
WANT_KEY: Final = 2
WANT_VALUE: Final = 4
WANT_HEADERS: Final = 8

# Why a line was refused; ``lines.REASONS`` has the words.
LINE_FIELDS: Final = 1
LINE_KEY_EMPTY: Final = 2
LINE_KEY_LONG: Final = 3
LINE_KEY_CONTROL: Final = 4
LINE_TIMESTAMP: Final = 5
LINE_NUMBER: Final = 6

KEY_BYTES_MAX: Final = 249
LINE_OVERHEAD: Final = 40  # what a record has around the bytes of its line, at most
RECORD_OVERHEAD: Final = 36  # the numbers of a record without headers, at most
HEADER_OVERHEAD: Final = 10  # the two lengths of one header, at most

_BATCH_HEADER: Final = 61
_CRC_START: Final = 21
_RECORD_MIN: Final = 7
_CODEC_BITS: Final = 7
_APPEND_TIME: Final = 8
_SEQUENCES: Final = 2**31
_NEWLINE: Final = 10
_RETURN: Final = 13
_BAR: Final = 124

READ = types.Array(types.uint8, 1, "C", readonly=True)
WRITE = types.Array(types.uint8, 1, "C")
LONGS = types.Array(types.int64, 1, "C")
INTS = types.Array(types.int32, 1, "C")
TABLE = types.Array(types.int64, 2, "C")
LONG = types.int64
NOTES = types.Tuple((LONGS, INTS))  # starts and lengths (or counts), to be filled in
SPANS = types.Tuple((READ, LONGS, INTS))  # the same with the bytes they are in


assert sys.byteorder == "little", "words are read as they lie in memory"


def kernel(*arguments: Any) -> Callable[[Function], Function]:
    """Compile for exactly these argument types, cached on disk wherever numba may write.

    Numba looks at NUMBA_CACHE_DIR, then beside this file, then in the user's cache directory;
    where it may write to none of them the kernel is compiled in memory at each start.
    """
    signature = LONG(*arguments)

    def decorate(function: Function) -> Function:
        try:
            compiled = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            compiled = numba.njit(signature, nogil=True)(function)
        return cast(Function, compiled)

    return decorate


def part(function: Function) -> Function:
    """A piece small enough to stand in each kernel that uses it."""
    return cast(Function, numba.njit(nogil=True, forceinline=True)(function))


def shared(function: Function) -> Function:
    """A larger piece that kernels call; it is compiled once."""
    return cast(Function, numba.njit(nogil=True)(function))


def machine(function: Function) -> Function:
    """A piece written in LLVM's own terms."""
    return cast(Function, intrinsic(function))


# --- memory and checksums -------------------------------------------------------------------


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Where byte ``index`` of an array lies."""
    proxy = cgutils.create_struct_proxy(kind)(context, builder, value=array)
    return builder.gep(proxy.data, [index])


@machine
def _load64(_context: Any, array: Any, position: Any) -> Any:
    """Eight bytes, the first one lowest, aligned or not."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.int64), codegen


@machine
def _trailing_zeros(_context: Any, word: Any) -> Any:
    """How many of the lowest bits are 0; the word is not 0."""

    def codegen(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@machine
def _store64(_context: Any, array: Any, position: Any, word: Any) -> Any:
    """Write what ``_load64`` read."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, position, word = arguments
        address = _address(context, builder, signature.args[0], array, position)
        builder.store(word, builder.bitcast(address, ir.IntType(64).as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


@machine
def _memcpy(_context: Any, to: Any, to_position: Any, source: Any, position: Any, size: Any) -> Any:
    """Copy ``size`` bytes; returns the position after them."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_position, source, position, size = arguments
        target = _address(context, builder, signature.args[0], to, to_position)
        origin = _address(context, builder, signature.args[2], source, position)
        cgutils.raw_memcpy(builder, target, origin, size, 1)
        return builder.add(to_position, size)

    return types.int64(to, types.int64, source, types.int64, types.int64), codegen


@part
def _copy(out: Any, to: int, data: Any, start: int, size: int) -> int:
    """Copy ``size`` bytes; returns the position after them. Short spans are spared a call."""
    if size > 128:
        return _memcpy(out, to, data, start, size)
    if size < 8:
        for index in range(size):
            out[to + index] = data[start + index]
        return to + size
    end = to + size
    last = _load64(data, start + size - 8)
    while to + 8 <= end:
        _store64(out, to, _load64(data, start))
        to += 8
        start += 8
    _store64(out, end - 8, last)  # overlaps what is there by what the words left over
    return end


@machine
def _crc_step(_context: Any, crc: Any, word: Any) -> Any:
    """SSE 4.2's CRC32C of eight more bytes."""

    def codegen(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        kind = ir.IntType(64)
        step = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind, kind]), "llvm.x86.sse42.crc32.64.64"
        )
        return builder.call(step, arguments)

    return types.uint64(types.uint64, types.uint64), codegen


def _crc_tables() -> Any:
    """CRC32C of a byte followed by 0 … 7 zero bytes: eight bytes in one step, on any machine."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 8):
        before = tables[row - 1]
        tables[row] = tables[0, before & np.uint64(0xFF)] ^ (before >> np.uint64(8))
    return tables


_CRC_TABLES: Final = _crc_tables()
_CRC_FLIP: Final = np.uint64(0xFFFFFFFF)
_BYTE: Final = np.uint64(0xFF)


@shared
def _crc_bytes(crc: Any, data: Any, start: int, end: int) -> Any:
    for position in range(start, end):
        index = (crc ^ np.uint64(data[position])) & _BYTE
        crc = _CRC_TABLES[0, index] ^ (crc >> np.uint64(8))
    return crc


@shared
def _crc_portable(data: Any, start: int, end: int) -> int:
    crc = _CRC_FLIP
    position = start
    while position + 8 <= end:
        word = crc ^ _load64(data, position)
        crc = np.uint64(0)
        for index in range(8):
            crc ^= _CRC_TABLES[7 - index, (word >> np.uint64(8 * index)) & _BYTE]
        position += 8
    return np.int64(_crc_bytes(crc, data, position, end) ^ _CRC_FLIP)


@shared
def _crc_machine(data: Any, start: int, end: int) -> int:
    crc = _CRC_FLIP
    position = start
    while position + 8 <= end:
        crc = _crc_step(crc, _load64(data, position))
        position += 8
    return np.int64(_crc_bytes(crc, data, position, end) ^ _CRC_FLIP)


def _has_crc_instruction() -> bool:
    return bool(llvm_binding.get_host_cpu_features().get("sse4.2", False))


_crc = _crc_machine if _has_crc_instruction() else _crc_portable


@kernel(READ, LONG, LONG)
def crc32c(data: Any, start: int, end: int) -> int:
    """CRC-32C of a range, by the machine's instruction where it has one."""
    return _crc(data, start, end)


@kernel(READ, LONG, LONG)
def crc32c_portable(data: Any, start: int, end: int) -> int:
    """The same without the instruction; apart so that tests reach it on any machine."""
    return _crc_portable(data, start, end)


# --- numbers --------------------------------------------------------------------------------


@part
def _read_int(data: Any, position: int, size: int) -> int:
    """A big-endian signed number of ``size`` bytes."""
    number = np.int64(np.int8(data[position]))
    for index in range(1, size):
        number = (number << 8) | np.int64(data[position + index])
    return number


@part
def _put_int(out: Any, position: int, size: int, number: int) -> int:
    for index in range(size):
        out[position + index] = np.uint8((number >> (8 * (size - 1 - index))) & 0xFF)
    return position + size


@part
def _read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """A 32-bit zigzag number and the position after it, which is -1 when it cannot be."""
    number = np.int64(0)
    shift = 0
    while position < end:
        byte = np.int64(data[position])
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 32:
                return np.int64(0), -1
            return (number >> 1) ^ -(number & 1), position
        shift += 7
        if shift >= 32:
            break
    return np.int64(0), -1


@part
def _read_varlong(data: Any, position: int, end: int) -> tuple[int, int]:
    """As ``_read_varint``, of 64 bits."""
    number = np.uint64(0)
    shift = 0
    while position < end:
        byte = np.uint64(data[position])
        position += 1
        number |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            if shift == 63 and byte > np.uint64(1):
                return np.int64(0), -1
            return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), position
        shift += 7
        if shift >= 64:
            break
    return np.int64(0), -1


@part
def _varint_size(number: int) -> int:
    if -64 <= number < 64:
        return 1
    left = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while left > np.uint64(0x7F):
        left >>= np.uint64(7)
        size += 1
    return size


@part
def _put_varint(out: Any, position: int, number: int) -> int:
    left = np.uint64((number << 1) ^ (number >> 63))
    while left > np.uint64(0x7F):
        out[position] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(left)
    return position + 1


# --- batches --------------------------------------------------------------------------------


@kernel(READ, LONGS)
def count_batches(data: Any, result: Any) -> int:
    """How many whole frames follow one another; ``result``: bytes they fill, how it ends."""
    position = np.int64(0)
    count = np.int64(0)
    end = len(data)
    result[1] = END_CLEAN
    while position < end:
        if end - position < _BATCH_HEADER:
            result[1] = END_TORN
            break
        length = _read_int(data, position + 8, 4)
        if length < _BATCH_HEADER - 12 or data[position + 16] != 2:
            result[1] = END_CORRUPT
            break
        if length + 12 > end - position:
            result[1] = END_TORN
            break
        position += length + 12
        count += 1
    result[0] = position
    return count


@kernel(READ, LONG, TABLE)
def read_headers(data: Any, verify: int, table: Any) -> int:
    """Fill the table for as many batches as ``count_batches`` found; stops at a bad checksum."""
    position = np.int64(0)
    for batch in range(len(table)):
        size = _read_int(data, position + 8, 4) + 12
        if verify:
            stated = _read_int(data, position + 17, 4) & 0xFFFFFFFF
            if _crc(data, position + _CRC_START, position + size) != stated:
                return batch
        table[batch, POSITION] = position
        table[batch, SIZE] = size
        table[batch, BASE_OFFSET] = _read_int(data, position, 8)
        table[batch, LEADER_EPOCH] = _read_int(data, position + 12, 4)
        table[batch, ATTRIBUTES] = _read_int(data, position + 21, 2)
        table[batch, LAST_DELTA] = _read_int(data, position + 23, 4)
        table[batch, BASE_TIME] = _read_int(data, position + 27, 8)
        table[batch, MAX_TIME] = _read_int(data, position + 35, 8)
        table[batch, PRODUCER_ID] = _read_int(data, position + 43, 8)
        table[batch, PRODUCER_EPOCH] = _read_int(data, position + 51, 2)
        table[batch, SEQUENCE] = _read_int(data, position + 53, 4)
        table[batch, COUNT] = _read_int(data, position + 57, 4)
        position += size
    return len(table)


@shared
def _put_header(out: Any, start: int, end: int, table: Any, batch: int) -> None:
    """Header and checksum of the batch in ``out[start:end]``, from its row of the table."""
    _put_int(out, start, 8, table[batch, BASE_OFFSET])
    _put_int(out, start + 8, 4, end - start - 12)
    _put_int(out, start + 12, 4, table[batch, LEADER_EPOCH])
    out[start + 16] = 2
    _put_int(out, start + 21, 2, table[batch, ATTRIBUTES])
    _put_int(out, start + 23, 4, table[batch, LAST_DELTA])
    _put_int(out, start + 27, 8, table[batch, BASE_TIME])
    _put_int(out, start + 35, 8, table[batch, MAX_TIME])
    _put_int(out, start + 43, 8, table[batch, PRODUCER_ID])
    _put_int(out, start + 51, 2, table[batch, PRODUCER_EPOCH])
    _put_int(out, start + 53, 4, table[batch, SEQUENCE])
    _put_int(out, start + 57, 4, table[batch, COUNT])
    _put_int(out, start + 17, 4, _crc(out, start + _CRC_START, end))


# --- batches → columns ----------------------------------------------------------------------


@part
def _read_length(data: Any, position: int, end: int) -> tuple[int, int]:
    """A length (-1 = null) that fits before ``end``; else the position is -1."""
    length, position = _read_varint(data, position, end)
    if position < 0 or length < -1 or length > end - position:
        return np.int64(0), -1
    return length, position


@shared
def _skip_headers(data: Any, position: int, end: int, count: int) -> int:
    """Past ``count`` headers; -1 when they cannot be."""
    for _ in range(count):
        length, position = _read_length(data, position, end)
        if position < 0 or length < 0:
            return -1
        length, position = _read_length(data, position + length, end)
        if position < 0:
            return -1
        position += max(length, 0)
    return position


@kernel(READ, TABLE, LONGS, LONGS, LONG, LONG, LONG, LONGS, LONGS, INTS, NOTES, NOTES, NOTES)
def scan_records(
    data: Any,
    table: Any,
    starts: Any,
    ends: Any,
    start_offset: int,
    end_offset: int,
    wanted: int,
    offsets: Any,
    times: Any,
    batches: Any,
    keys: Any,
    values: Any,
    headers: Any,
) -> int:
    """Note where the wanted parts of each record lie; the number of rows, or -1 - bad batch.

    Records outside [start_offset, end_offset) are passed over. ``offsets`` and ``batches`` (which
    row of the table) have room for every record the headers count; the others too when wanted.
    """
    row = np.int64(0)
    for batch in range(len(table)):
        position = starts[batch]
        end = ends[batch]
        base = table[batch, BASE_OFFSET]
        is_append_time = table[batch, ATTRIBUTES] & _APPEND_TIME
        count = table[batch, COUNT]
        if count < 0 or count > (end - position) // _RECORD_MIN:
            return -1 - batch
        last_delta = np.int64(-1)
        for _ in range(count):
            length, position = _read_varint(data, position, end)
            if position < 0 or length < _RECORD_MIN - 1 or length > end - position:
                return -1 - batch
            record_end = position + length
            time_delta, position = _read_varlong(data, position + 1, record_end)
            if position < 0:
                return -1 - batch
            delta, position = _read_varint(data, position, record_end)
            if position < 0 or delta <= last_delta or delta > table[batch, LAST_DELTA]:
                return -1 - batch
            last_delta = delta
            if base + delta < start_offset or base + delta >= end_offset:
                position = record_end
                continue
            offsets[row] = base + delta
            batches[row] = batch
            if wanted & WANT_TIME:
                if is_append_time:
                    times[row] = table[batch, MAX_TIME]
                else:
                    times[row] = table[batch, BASE_TIME] + time_delta
            if wanted & (WANT_KEY | WANT_VALUE | WANT_HEADERS):
                length, position = _read_length(data, position, record_end)
                if position < 0:
                    return -1 - batch
                if wanted & WANT_KEY:
                    keys[0][row] = position
                    keys[1][row] = length
                position += max(length, 0)
            if wanted & (WANT_VALUE | WANT_HEADERS):
                length, position = _read_length(data, position, record_end)
                if position < 0:
                    return -1 - batch
                if wanted & WANT_VALUE:
                    values[0][row] = position
                    values[1][row] = length
                position += max(length, 0)
            if wanted & WANT_HEADERS:
                header_count, position = _read_varint(data, position, record_end)
                if position < 0 or header_count < 0 or header_count > (record_end - position) // 2:
                    return -1 - batch
                headers[0][row] = position
                headers[1][row] = header_count
                if _skip_headers(data, position, record_end, header_count) != record_end:
                    return -1 - batch
            position = record_end
            row += 1
        if position != end:
            return -1 - batch
    return row


@kernel(SPANS, NOTES, NOTES)
def scan_headers(headers: Any, names: Any, contents: Any) -> int:
    """Where the headers lie that ``scan_records`` has already walked; how many there are."""
    data, starts, counts = headers
    end = len(data)
    header = np.int64(0)
    for row in range(len(starts)):
        position = starts[row]
        for _ in range(counts[row]):
            length, position = _read_length(data, position, end)
            names[0][header] = position
            names[1][header] = length
            position += length
            length, position = _read_length(data, position, end)
            contents[0][header] = position
            contents[1][header] = length
            position += max(length, 0)
            header += 1
    return header


@kernel(SPANS, WRITE, INTS, WRITE)
def gather(spans: Any, out: Any, ends: Any, valid: Any) -> int:
    """Bring spans together as Arrow wants them: bytes, n + 1 offsets, a bitmap; count of nulls."""
    data, starts, lengths = spans
    position = np.int64(0)
    nulls = np.int64(0)
    ends[0] = 0
    for row in range(len(starts)):
        length = np.int64(lengths[row])
        if length < 0:
            nulls += 1
        else:
            valid[row >> 3] |= np.uint8(1 << (row & 7))
            position = _copy(out, position, data, starts[row], length)
        ends[row + 1] = position
    return nulls


# --- columns → batches ----------------------------------------------------------------------


@part
def _put_bytes(out: Any, position: int, data: Any, start: int, length: int) -> int:
    """A length and its bytes; -1 is null and has none."""
    position = _put_varint(out, position, length)
    if length > 0:
        position = _copy(out, position, data, start, length)
    return position


@part
def _span_size(spans: Any, row: int) -> int:
    length = np.int64(spans[2][row])
    return _varint_size(length) + max(length, 0)


@part
def _put_span(out: Any, position: int, spans: Any, row: int) -> int:
    return _put_bytes(out, position, spans[0], spans[1][row], np.int64(spans[2][row]))


@kernel(TABLE, LONGS, LONGS, SPANS, SPANS, LONGS, SPANS, SPANS, WRITE)
def encode_batches(
    table: Any,
    offsets: Any,
    times: Any,
    keys: Any,
    values: Any,
    header_rows: Any,
    names: Any,
    contents: Any,
    out: Any,
) -> int:
    """Write each batch of the table with the next COUNT rows, uncompressed; the bytes written.

    Sets POSITION, SIZE and (unless append time, or empty) MAX_TIME in the table. Headers of row
    ``r`` are ``header_rows[r]`` up to ``header_rows[r + 1]``. ``out`` has room for the spans and
    the overheads stated above.
    """
    row = np.int64(0)
    position = np.int64(0)
    for batch in range(len(table)):
        start = position
        position += _BATCH_HEADER
        newest = times[row] if table[batch, COUNT] else table[batch, MAX_TIME]
        for _ in range(table[batch, COUNT]):
            time_delta = times[row] - table[batch, BASE_TIME]
            delta = offsets[row] - table[batch, BASE_OFFSET]
            headers = header_rows[row + 1] - header_rows[row]
            length = 1 + _varint_size(time_delta) + _varint_size(delta) + _varint_size(headers)
            length += _span_size(keys, row) + _span_size(values, row)
            for header in range(header_rows[row], header_rows[row + 1]):
                length += _span_size(names, header) + _span_size(contents, header)
            position = _put_varint(out, position, length)
            out[position] = 0
            position = _put_varint(out, position + 1, time_delta)
            position = _put_varint(out, position, delta)
            position = _put_span(out, position, keys, row)
            position = _put_span(out, position, values, row)
            position = _put_varint(out, position, headers)
            for header in range(header_rows[row], header_rows[row + 1]):
                position = _put_span(out, position, names, header)
                position = _put_span(out, position, contents, header)
            newest = max(newest, times[row])
            row += 1
        if not table[batch, ATTRIBUTES] & _APPEND_TIME:
            table[batch, MAX_TIME] = newest
        table[batch, POSITION] = start
        table[batch, SIZE] = position - start
        _put_header(out, start, position, table, batch)
    return position


# --- lines → batches ------------------------------------------------------------------------

_ONES: Final = np.uint64(0x0101010101010101)
_TENTH: Final = (2**63 - 1) // 10
_TENS: Final = np.uint64(0xF0F0F0F0F0F0F0F0)
_ZEROS: Final = np.uint64(0x3030303030303030)
_SIXES: Final = np.uint64(0x0606060606060606)
_SPACES: Final = np.uint64(0x2020202020202020)
_DELETES: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGHS: Final = np.uint64(0x8080808080808080)


@part
def _find(data: Any, start: int, end: int, byte: int) -> int:
    """The first place of ``byte``, or ``end``: eight bytes at a time while there are eight."""
    position = start
    pattern = np.uint64(byte) * _ONES
    while position + 8 <= end:
        word = _load64(data, position) ^ pattern
        zeros = (word - _ONES) & ~word & _HIGHS  # the lowest bit set marks the first zero byte
        if zeros:
            return position + (_trailing_zeros(zeros) >> 3)
        position += 8
    while position < end and data[position] != byte:
        position += 1
    return position


@part
def _read_decimal(data: Any, start: int, end: int) -> int:
    """The number up to 2**63 - 1 that digits say; -1 when it is larger."""
    number = np.int64(0)
    for position in range(start, end):
        digit = np.int64(data[position]) - 48
        if number > _TENTH or (number == _TENTH and digit > 7):
            return np.int64(-1)
        number = number * 10 + digit
    return number


@part
def _is_decimal(data: Any, start: int, end: int) -> bool:
    """Whether it is digits alone, and below 2**63."""
    position = start
    while position + 8 <= end:
        word = _load64(data, position)
        if (word & _TENS) != _ZEROS or ((word + _SIXES) & _TENS) != _ZEROS:
            return False
        position += 8
    while position < end:
        if data[position] < 48 or data[position] > 57:
            return False
        position += 1
    return start < end and (end - start <= 18 or _read_decimal(data, start, end) >= 0)


@part
def _check_key(data: Any, start: int, end: int) -> int:
    if start == end:
        return LINE_KEY_EMPTY
    if end - start > KEY_BYTES_MAX:
        return LINE_KEY_LONG
    position = start
    while position + 8 <= end:
        word = _load64(data, position)
        deletes = word ^ _DELETES
        if ((word - _SPACES) & ~word | (deletes - _ONES) & ~deletes) & _HIGHS:
            return LINE_KEY_CONTROL
        position += 8
    while position < end:
        if data[position] < 32 or data[position] == 127:
            return LINE_KEY_CONTROL
        position += 1
    return 0


@part
def _check_line(chunk: Any, first: int, bars: Any, stop: int) -> int:
    """0, or why ``chunk[first:stop]`` with separators at ``bars`` is no record."""
    if bars[2] == stop:
        return LINE_FIELDS
    reason = _check_key(chunk, first, bars[0])
    if reason != 0:
        return reason
    if not _is_decimal(chunk, bars[0] + 1, bars[1]):
        return LINE_TIMESTAMP
    if not _is_decimal(chunk, bars[1] + 1, bars[2]):
        return LINE_NUMBER
    return 0


@part
def _line_size(first: int, bars: Any, stop: int) -> int:
    """Bytes of the record of a line, without its length and offset delta."""
    key = bars[0] - first
    time = bars[1] - bars[0] - 1
    n = bars[2] - bars[1] - 1
    value = stop - bars[2] - 1
    return (
        8  # attributes, timestamp delta, header count, and the two header names
        + _varint_size(key) + key + _varint_size(time) + time
        + _varint_size(n) + n + _varint_size(value) + value
    )  # fmt: skip


@part
def _put_line(out: Any, position: int, length: int, delta: int, line: Any) -> int:
    chunk, first, bars, stop = line
    position = _put_varint(out, position, length)
    out[position] = 0
    out[position + 1] = 0
    position = _put_varint(out, position + 2, delta)
    position = _put_bytes(out, position, chunk, first, bars[0] - first)
    position = _put_bytes(out, position, chunk, bars[2] + 1, stop - bars[2] - 1)
    out[position] = 4  # two headers
    out[position + 1] = 4  # a name of two bytes: ts
    out[position + 2] = 116
    out[position + 3] = 115
    position = _put_bytes(out, position + 4, chunk, bars[0] + 1, bars[1] - bars[0] - 1)
    out[position] = 2  # a name of one byte: n
    out[position + 1] = 110
    return _put_bytes(out, position + 2, chunk, bars[1] + 1, bars[2] - bars[1] - 1)


@shared
def _end_batch(out: Any, start: int, end: int, table: Any) -> None:
    """Header of the open batch; the table's row turns to the next one."""
    table[0, LAST_DELTA] = table[0, COUNT] - 1
    _put_header(out, start, end, table, 0)
    table[0, BASE_OFFSET] += table[0, COUNT]
    table[0, COUNT] = 0


@kernel(READ, LONG, LONG, TABLE, WRITE, LONGS, LONGS)
def encode_lines(
    chunk: Any,
    last_n: int,
    batch_bytes_max: int,
    table: Any,
    out: Any,
    rejected: Any,
    result: Any,
) -> int:
    """Lines → batches in ``out``, see ``lines``; the bytes written.

    ``table`` has one row, the header to start with: times, and a producer if lines are counted
    (id from 0). ``rejected`` takes start, end and reason per refused line; ``result`` becomes
    records, refused lines, duplicates and the newest n. ``out`` has LINE_OVERHEAD bytes more per
    line than the chunk, and a header per batch: one for each line when lines are counted.
    """
    counts = table[0, PRODUCER_ID] >= 0
    end = len(chunk)
    line = np.int64(0)
    start = np.int64(0)  # of the open batch
    position = np.int64(0)
    refused = np.int64(0)
    duplicates = np.int64(0)
    while line < end:
        newline = _find(chunk, line, end, _NEWLINE)
        first, stop, line = line, newline, newline + 1
        if stop > first and chunk[stop - 1] == _RETURN:
            stop -= 1
        if stop == first:
            continue
        bar1 = _find(chunk, first, stop, _BAR)
        bar2 = _find(chunk, min(bar1 + 1, stop), stop, _BAR)
        bar3 = _find(chunk, min(bar2 + 1, stop), stop, _BAR)
        bars = (bar1, bar2, bar3)
        reason = _check_line(chunk, first, bars, stop)
        if reason != 0:
            rejected[3 * refused] = first
            rejected[3 * refused + 1] = newline
            rejected[3 * refused + 2] = reason
            refused += 1
            continue
        follows = True
        n = np.int64(-1)
        if counts:
            n = _read_decimal(chunk, bar2 + 1, bar3)
            distance = (n - last_n) & (_SEQUENCES - 1)
            if last_n >= 0 and (distance == 0 or distance >= _SEQUENCES // 2):
                duplicates += 1
                continue
            follows = last_n >= 0 and distance == 1
            last_n = n
        fixed = _line_size(first, bars, stop)
        length = fixed + _varint_size(table[0, COUNT])
        size = length + _varint_size(length)
        if table[0, COUNT] > 0 and (not follows or position - start + size > batch_bytes_max):
            _end_batch(out, start, position, table)
            length = fixed + 1
            start = position
        if table[0, COUNT] == 0:
            position = start + _BATCH_HEADER
            if counts:
                table[0, SEQUENCE] = n & (_SEQUENCES - 1)
        position = _put_line(out, position, length, table[0, COUNT], (chunk, first, bars, stop))
        table[0, COUNT] += 1
    if table[0, COUNT] > 0:
        _end_batch(out, start, position, table)
    result[0] = table[0, BASE_OFFSET]
    result[1] = refused
    result[2] = duplicates
    result[3] = last_n
    return position
