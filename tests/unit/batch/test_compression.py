"""The five codecs: round trips, damaged input, and limits on the decompressed size."""

import contextlib
import gzip
import struct
import tracemalloc

import cramjam
import pytest

from cordwood.batch.compression import compress, decompress
from cordwood.errors import CorruptBatch
from cordwood.model import Codec

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b'{"user": %d, "name": "n%d"}' % (i, i * 7919 % 100) for i in range(9000))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(70_000), TEXT], ids=["empty", "one", "zeros", "text"]
)
def test_what_was_compressed_comes_back(codec, data):
    """Compressed data decompresses to the same bytes, for any buffer and several blocks."""
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(bytearray(data))))) == data


@pytest.mark.parametrize("codec", Codec)
def test_the_bound_is_exact(codec):
    """The size limit is exact: a million bytes pass it, and fail with a limit one lower."""
    packed = compress(codec, bytes(1_000_000))
    assert len(decompress(codec, packed, 1_000_000)) == 1_000_000
    with pytest.raises(CorruptBatch, match="uncompressed"):
        decompress(codec, packed, 999_999)


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_never_held_in_memory(codec):
    """Decompression beyond the limit stops early, so peak memory stays near the limit."""
    bomb = compress(codec, bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="uncompressed"):
            decompress(codec, bomb, 1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8_000_000


@pytest.mark.parametrize("codec", PACKED)
def test_damage_is_corruption_and_never_a_crash(codec):
    """Truncated or foreign data raises CorruptBatch or gives other bytes, and never crashes."""
    packed = compress(codec, TEXT)
    for cut in range(0, len(packed) - 1, max(1, len(packed) // 50)):
        with contextlib.suppress(CorruptBatch):
            assert decompress(codec, packed[:cut]) != TEXT
    with pytest.raises(CorruptBatch):
        decompress(codec, b"\xff" * 100)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_frame_cut_short_does_not_pass_for_a_whole_one(codec):
    """A frame without its last byte is corrupt.

    Snappy has no end marker, because its blocks state their length.
    """
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, TEXT)[:-1])


def test_snappy_is_read_raw_and_framed():
    """Raw and framed snappy are both read; like the Java client, we write blocks of 32 KiB."""
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, framed) == TEXT


def test_a_raw_snappy_bomb_is_refused_before_it_is_inflated():
    """Raw snappy that states a length above the limit is refused before decompression."""
    with pytest.raises(CorruptBatch, match="bytes uncompressed"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20)


def test_a_snappy_block_that_states_more_than_it_can_hold_is_refused_unread():
    """A snappy block that states more than 32 times its size is refused before allocation."""
    with pytest.raises(CorruptBatch, match="a block of 23 bytes states 100000"):
        decompress(Codec.SNAPPY, b"\xa0\x8d\x06" + b"\x00" * 20)


@pytest.mark.parametrize("by", [-(2**31), -1, 1], ids=["negative", "shorter", "longer"])
def test_a_snappy_frame_whose_block_length_lies_is_corruption(by):
    """A wrong block length in a snappy frame is corrupt."""
    frame = bytearray(compress(Codec.SNAPPY, b"some text"))
    (length,) = struct.unpack_from(">i", frame, 16)
    assert length == len(frame) - 20
    struct.pack_into(">i", frame, 16, max(length + by, -(2**31)))
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, frame)


def test_a_snappy_frame_with_an_empty_block_is_corruption():
    """A snappy frame with an empty block or a truncated block length is corrupt."""
    frame = compress(Codec.SNAPPY, b"some text")
    for behind in (bytes(4), bytes(3), b"\0"):
        with pytest.raises(CorruptBatch):
            decompress(Codec.SNAPPY, frame + behind)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_no_byte_at_all_is_no_frame(codec):
    """Empty input is not a valid frame."""
    with pytest.raises(CorruptBatch):
        decompress(codec, b"")


def test_lz4_blocks_are_independent():
    """LZ4 frames are written with independent blocks, as Java requires; linked ones are read."""
    frame = compress(Codec.LZ4, TEXT)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20, "the block independence bit"
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT, level=1))) == TEXT, "linked ones"


def test_several_gzip_members_and_zstd_frames_are_read_as_one():
    """Several gzip members or zstd frames are decompressed as one stream."""
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    two = compress(Codec.ZSTD, b"one ") + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, two) == b"one two"
    for codec, packed in ((Codec.GZIP, gzip.compress(b"one ") * 2), (Codec.ZSTD, two)):
        with pytest.raises(CorruptBatch, match="bytes uncompressed"):
            decompress(codec, packed, 6)
