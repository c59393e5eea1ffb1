"""The five codecs: what they write, what they read, and that nothing inflates without bound."""

import contextlib
import gzip
import tracemalloc

import cramjam
import pytest

from cordwood.batch.compress import compress, decompress
from cordwood.errors import CorruptBatch
from cordwood.model import Codec

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b'{"user": %d, "name": "n%d"}' % (i, i * 7919 % 100) for i in range(9000))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(70_000), TEXT], ids=["empty", "one", "zeros", "text"]
)
def test_what_was_compressed_comes_back(codec, data):
    """Any buffer in, the same bytes out; larger than one block of each format."""
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(bytearray(data))))) == data


@pytest.mark.parametrize("codec", Codec)
def test_the_bound_is_exact(codec):
    """A million bytes fit into a million, and not into one less."""
    packed = compress(codec, bytes(1_000_000))
    assert len(decompress(codec, packed, 1_000_000)) == 1_000_000
    with pytest.raises(CorruptBatch, match="inflate"):
        decompress(codec, packed, 999_999)


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_never_held_in_memory(codec):
    """A hundred megabytes behind a bound of one: the peak stays near the bound."""
    bomb = compress(codec, bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="inflate"):
            decompress(codec, bomb, 1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8_000_000


@pytest.mark.parametrize("codec", PACKED)
def test_damage_is_corruption_and_never_a_crash(codec):
    """Cut short at many places, or not of the format at all."""
    packed = compress(codec, TEXT)
    for cut in range(0, len(packed) - 1, max(1, len(packed) // 50)):
        with contextlib.suppress(CorruptBatch):
            assert decompress(codec, packed[:cut]) != TEXT
    with pytest.raises(CorruptBatch):
        decompress(codec, b"\xff" * 100)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_frame_cut_short_does_not_pass_for_a_whole_one(codec):
    """The last byte missing is enough (snappy has no end mark: its blocks state their length)."""
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, TEXT)[:-1])


def test_snappy_is_read_raw_and_framed():
    """Some clients send it raw; Java's client frames it in blocks of 32 KiB, and so do we."""
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, framed) == TEXT


def test_a_raw_snappy_bomb_is_refused_before_it_is_inflated():
    """The length it states is believed for refusing, not for allocating."""
    with pytest.raises(CorruptBatch, match="inflate past"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20)


def test_lz4_blocks_are_independent():
    """Java's reader refuses frames whose blocks refer to earlier ones."""
    frame = compress(Codec.LZ4, TEXT)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20, "the block independence bit"
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT, level=1))) == TEXT, "linked ones"


def test_several_gzip_members_and_zstd_frames_are_read_as_one():
    """Streams that flush write more than one."""
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    two = compress(Codec.ZSTD, b"one ") + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, two) == b"one two"
    with pytest.raises(CorruptBatch, match="inflate past"):
        decompress(Codec.ZSTD, two, 6)
