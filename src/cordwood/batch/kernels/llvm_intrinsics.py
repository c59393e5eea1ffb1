# mypy: ignore-errors
# ruff: noqa: ARG001
# Numba types these functions, by the signature above each and at compile time; read as plain Python
# their machine numbers make no sense to mypy. Nothing leaks: callers reach kernels through an
# untyped module. Codegen functions get their arguments by position, which ruff takes for unused.
"""What kernels are made of: memory, checksums, numbers, and the decorators that compile them.

Pieces only; ``kernels`` and ``line_kernels`` put them together. Numba renews its cache of a kernel
when the kernel's own file changes, but not when this one does: so both files state this file's
digest (``INTRINSICS_DIGEST``), and a test says when it is no longer true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
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

BATCH_HEADER_BYTES: Final = 61
CRC_START: Final = 21

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

    Numba looks at NUMBA_CACHE_DIR, then beside the kernel's file, then in the user's cache
    directory; where it may write to none of them, the kernel is compiled at each start. A cache
    that does not load (a crash may have left its files empty) is removed and made again.
    """
    signature = LONG(*arguments)

    def decorate(function: Function) -> Function:
        try:
            cached = numba.njit(nogil=True, cache=True)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return cast(Function, numba.njit(signature, nogil=True)(function))
        try:
            return cast(Function, _compiled(cached, signature))
        except Exception:  # noqa: BLE001 - damaged pickles raise anything; the second try tells
            stem = Path(function.__code__.co_filename).stem
            for path in Path(cached.stats.cache_path).glob(f"{stem}.{function.__name__}-*.nb?"):
                path.unlink(missing_ok=True)
            return cast(
                Function, _compiled(numba.njit(nogil=True, cache=True)(function), signature)
            )

    return decorate


def _compiled(dispatcher: Any, signature: Any) -> Any:
    """Ready for this signature and no other: nothing is left to compile on a client's time."""
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


_PIECE: Final = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def part(function: Function) -> Function:
    """A piece small enough to stand in each kernel that uses it."""
    return cast(Function, numba.njit(**_PIECE, forceinline=True)(function))


def shared(function: Function) -> Function:
    """A larger piece that kernels call; it is compiled once."""
    return cast(Function, numba.njit(**_PIECE)(function))


def machine(function: Function) -> Function:
    """A piece written in LLVM's own terms."""
    return cast(Function, intrinsic(function))


# --- memory and checksums -------------------------------------------------------------------


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Where byte ``index`` of an array lies."""
    proxy = cgutils.create_struct_proxy(kind)(context, builder, value=array)
    return builder.gep(proxy.data, [index])


@machine
def load64(_context: Any, array: Any, position: Any) -> Any:
    """Eight bytes, the first one lowest, aligned or not."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.int64), codegen


@machine
def trailing_zeros(_context: Any, word: Any) -> Any:
    """How many of the lowest bits are 0; the word is not 0."""

    def codegen(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@machine
def match32(_context: Any, array: Any, position: Any, byte: Any) -> Any:
    """Which of 32 bytes are this one: a bit for each, the first one's lowest."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, position, byte = arguments
        vector = ir.VectorType(ir.IntType(8), 32)
        address = _address(context, builder, signature.args[0], array, position)
        loaded = builder.load(builder.bitcast(address, vector.as_pointer()))
        loaded.align = 1
        first = builder.insert_element(
            ir.Constant(vector, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0)
        )
        keyed_queue = ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
        wanted = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), keyed_queue)
        found = builder.bitcast(builder.icmp_unsigned("==", loaded, wanted), ir.IntType(32))
        return builder.zext(found, ir.IntType(64))

    return types.uint64(array, types.int64, types.uint8), codegen


@machine
def count_bits(_context: Any, word: Any) -> Any:
    """How many bits are 1."""

    def codegen(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


@machine
def copy32(_context: Any, to: Any, to_position: Any, source: Any, position: Any) -> Any:
    """Copy 32 bytes, aligned or not; both arrays have them."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_position, source, position = arguments
        vector = ir.VectorType(ir.IntType(8), 32).as_pointer()
        target = _address(context, builder, signature.args[0], to, to_position)
        origin = _address(context, builder, signature.args[2], source, position)
        loaded = builder.load(builder.bitcast(origin, vector))
        loaded.align = 1
        builder.store(loaded, builder.bitcast(target, vector)).align = 1
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64), codegen


@machine
def store64(_context: Any, array: Any, position: Any, word: Any) -> Any:
    """Write what ``load64`` read."""

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
def copy_bytes(out: Any, to: int, data: Any, start: int, size: int) -> int:
    """Copy ``size`` bytes; returns the position after them. Short spans are spared a call."""
    if size > 128:
        return _memcpy(out, to, data, start, size)
    if size < 8:
        for index in range(size):
            out[to + index] = data[start + index]
        return to + size
    end = to + size
    last = load64(data, start + size - 8)
    while to + 8 <= end:
        store64(out, to, load64(data, start))
        to += 8
        start += 8
    store64(out, end - 8, last)  # overlaps what is there by what the words left over
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
def crc_portable(data: Any, start: int, end: int) -> int:
    """CRC-32C by tables."""
    crc = _CRC_FLIP
    position = start
    while position + 8 <= end:
        word = crc ^ load64(data, position)
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
        crc = _crc_step(crc, load64(data, position))
        position += 8
    return np.int64(_crc_bytes(crc, data, position, end) ^ _CRC_FLIP)


def _has_crc_instruction() -> bool:
    return bool(llvm_binding.get_host_cpu_features().get("sse4.2", False))


crc = _crc_machine if _has_crc_instruction() else crc_portable


# --- numbers --------------------------------------------------------------------------------


@part
def read_int(data: Any, position: int, size: int) -> int:
    """A big-endian signed number of ``size`` bytes."""
    number = np.int64(np.int8(data[position]))
    for index in range(1, size):
        number = (number << 8) | np.int64(data[position + index])
    return number


@part
def put_int(out: Any, position: int, size: int, number: int) -> int:
    """Write what ``read_int`` reads; the position after it, as all that put."""
    for index in range(size):
        out[position + index] = np.uint8((number >> (8 * (size - 1 - index))) & 0xFF)
    return position + size


@part
def read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
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
def read_varlong(data: Any, position: int, end: int) -> tuple[int, int]:
    """As ``read_varint``, of 64 bits."""
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
def varint_size(number: int) -> int:
    """Bytes of a zigzag number."""
    if -64 <= number < 64:
        return 1
    left = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while left > np.uint64(0x7F):
        left >>= np.uint64(7)
        size += 1
    return size


@part
def put_varint(out: Any, position: int, number: int) -> int:
    """A zigzag number of 32 or 64 bits: seven to a byte, lowest first."""
    left = np.uint64((number << 1) ^ (number >> 63))
    while left > np.uint64(0x7F):
        out[position] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(left)
    return position + 1


# --- batches --------------------------------------------------------------------------------


@part
def put_bytes(out: Any, position: int, data: Any, start: int, length: int) -> int:
    """A length and its bytes; -1 is null and has none."""
    position = put_varint(out, position, length)
    if length > 0:
        position = copy_bytes(out, position, data, start, length)
    return position


@shared
def put_header(out: Any, start: int, end: int, table: Any, batch: int) -> None:
    """Header and checksum of the batch in ``out[start:end]``, from its row of the table."""
    put_int(out, start, 8, table[batch, BASE_OFFSET])
    put_int(out, start + 8, 4, end - start - 12)
    put_int(out, start + 12, 4, table[batch, LEADER_EPOCH])
    out[start + 16] = 2
    put_int(out, start + 21, 2, table[batch, ATTRIBUTES])
    put_int(out, start + 23, 4, table[batch, LAST_DELTA])
    put_int(out, start + 27, 8, table[batch, BASE_TIME])
    put_int(out, start + 35, 8, table[batch, MAX_TIME])
    put_int(out, start + 43, 8, table[batch, PRODUCER_ID])
    put_int(out, start + 51, 2, table[batch, PRODUCER_EPOCH])
    put_int(out, start + 53, 4, table[batch, SEQUENCE])
    put_int(out, start + 57, 4, table[batch, COUNT])
    put_int(out, start + 17, 4, crc(out, start + CRC_START, end))
