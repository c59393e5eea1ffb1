"""The five codecs of record batches, with bounded decompression.

Output matches Kafka's Java client: gzip, xerial-framed snappy, lz4 and zstd frames. Input may come
from any client: also raw snappy (librdkafka), and several gzip members or zstd frames in sequence.
No function returns more than ``size_max`` bytes or holds more than twice as many, so a small
hostile batch cannot exhaust memory. Data that cannot be decompressed raises ``CorruptBatch``.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam

from cordwood.batch.header import Buffer
from cordwood.errors import CorruptBatch
from cordwood.model import Codec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

INFLATED_BYTES_MAX: Final = 256 * 1024 * 1024

_GZIP_WINDOW: Final = 31  # zlib's wbits value for a gzip header and trailer
_GZIP_LEVEL: Final = 6
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"  # independent blocks of 64 KiB, no checksums
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED_BIT: Final = 1 << 31
_LZ4_LENGTH: Final = struct.Struct("<I")
_LZ4_RATIO_MAX: Final = 255  # format limit: a length byte stands for at most 255 bytes
_LZ4_FAST_LEVEL: Final = 9
_ZSTD_LEVEL: Final = 3
_SNAPPY_RATIO_MAX: Final = 32  # format limit: three bytes stand for at most 64
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH: Final = struct.Struct(">i")


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records section of a batch; without ``level``, as Kafka's clients do."""
    if level is None or codec not in LEVELS:
        return _COMPRESSORS[codec](data)
    return LEVELS[codec](data, level)


def decompress(codec: Codec, data: Buffer, size_max: int = INFLATED_BYTES_MAX) -> bytes:
    """Inverse of ``compress``; raises ``CorruptBatch`` if damaged or larger than ``size_max``."""
    inflated = inflate(codec, data, size_max)
    if inflated is None:
        raise CorruptBatch(
            f"the records take more than {size_max} bytes uncompressed; send smaller batches"
        )
    return inflated


def inflate(codec: Codec, data: Buffer, size_max: int) -> bytes | None:
    """Like ``decompress``, but returns None if the output may exceed ``size_max`` bytes."""
    try:
        return _DECOMPRESSORS[codec](data, size_max)
    except _PastLimit:
        return None
    except (cramjam.DecompressionError, zlib.error, zstd.ZstdError, EOFError) as error:
        raise CorruptBatch(
            f"the {codec.name.lower()} data cannot be decompressed: {error}"
        ) from None


class _PastLimit(Exception):
    """The output exceeds the limit."""


def _keep(data: Buffer) -> bytes:
    return bytes(data)


def _kept(data: Buffer, size_max: int) -> bytes:
    if len(data) > size_max:
        raise _PastLimit
    return bytes(data)


def _gzip(data: Buffer, level: int = _GZIP_LEVEL) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(data) + packer.flush()


def _gunzip(data: Buffer, size_max: int) -> bytes:
    return _inflate_each(data, size_max, lambda: zlib.decompressobj(_GZIP_WINDOW))


def _inflate_each(data: Buffer, size_max: int, begin: Callable[[], Any]) -> bytes:
    """Inflate gzip members or zstd frames, one after another; ``begin`` starts the next one."""
    parts: list[bytes] = []
    left = size_max
    rest: bytes = bytes(data)
    while rest or not parts:
        part = begin()
        parts.append(part.decompress(rest, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _PastLimit
        if not part.eof:
            raise EOFError("the data ends inside a gzip member or zstd frame")
        rest = part.unused_data
    return b"".join(parts)


def _snap(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _unsnap(data: Buffer, size_max: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnap_block(view, size_max)
    parts: list[bytes] = []
    left, position = size_max, len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise EOFError("the data ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise EOFError(
                f"a block states {length} bytes, but only {len(view) - position} are left"
            )
        parts.append(_unsnap_block(view[position : position + length], left))
        left -= len(parts[-1])
        position += length
    return b"".join(parts)


def _unsnap_block(block: memoryview, left: int) -> bytes:
    stated: int = cramjam.snappy.decompress_raw_len(block)  # read the size before allocating
    if stated > left:
        raise _PastLimit
    if stated > _SNAPPY_RATIO_MAX * len(block):
        raise EOFError(f"a block of {len(block)} bytes states {stated}, more than the format can")
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4(data: Buffer, level: int = _LZ4_FAST_LEVEL) -> bytes:
    """Write independent 64 KiB blocks: Java's reader refuses the linked ones that cramjam makes.

    As in Kafka, the default level selects the fast compressor and any other the thorough one.
    """
    mode: dict[str, Any] = {}
    if level != _LZ4_FAST_LEVEL:
        mode = {"mode": "high_compression", "compression": level}
    view = memoryview(data)
    parts = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False, **mode))
        if len(block) < len(plain):
            parts += [_LZ4_LENGTH.pack(len(block)), block]
        else:
            parts += [_LZ4_LENGTH.pack(len(plain) | _LZ4_STORED_BIT), bytes(plain)]
    parts.append(_LZ4_LENGTH.pack(0))
    return b"".join(parts)


def _unlz4(data: Buffer, size_max: int) -> bytes:
    """Decompress into a buffer that grows up to the limit: frames need not state their size."""
    ceiling = min(size_max, _LZ4_RATIO_MAX * len(data) + _LZ4_BLOCK_BYTES)
    size = min(ceiling, 4 * len(data) + _LZ4_BLOCK_BYTES)
    while True:
        output = bytearray(size)
        try:
            written: int = cramjam.lz4.decompress_into(data, output)
            return bytes(memoryview(output)[:written])
        except cramjam.DecompressionError as error:
            if size == size_max:  # damaged or too large: the library does not tell them apart
                raise _PastLimit from error
            if size == ceiling:
                raise
        size = min(ceiling, 8 * size)


def _zstd(data: Buffer, level: int = _ZSTD_LEVEL) -> bytes:
    return zstd.compress(data, level=level)


def _unzstd(data: Buffer, size_max: int) -> bytes:
    return _inflate_each(data, size_max, zstd.ZstdDecompressor)


_COMPRESSORS: Final[dict[Codec, Callable[[Buffer], bytes]]] = {
    Codec.NONE: _keep,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snap,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: Final[dict[Codec, Callable[[Buffer, int], bytes]]] = {
    Codec.NONE: _kept,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnap,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
LEVELS: Final[dict[Codec, Callable[[Buffer, int], bytes]]] = {
    Codec.GZIP: _gzip,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
