"""Text and frames share a port: how they are told apart, and cut into messages."""

import pytest

from cordwood.errors import BadFrame, UnexpectedTls
from cordwood.protocol.line.framing import (
    FRAME_BYTES_MAX,
    KEPT_BYTES,
    Framing,
    Splitter,
    TooLong,
    plan_framing,
)

MIB = 2**20


def frame(body: bytes) -> bytes:
    return Framing.FRAMES.encode(body)


def drain(splitter: Splitter) -> list[bytes | TooLong]:
    return list(iter(splitter.next_message, None))


@pytest.mark.parametrize("length", [0, 1, 9, 10, 13, 0x20, 0x0A0A0A, 790, 66_326, MIB, MIB + 1])
def test_any_first_frame_around_the_limit_is_seen_as_a_frame(length):
    """A length that looks like text or a newline is still a length: its fourth byte is NUL."""
    head = length.to_bytes(4, "little") + b"GE"
    assert plan_framing(head, MIB) is Framing.FRAMES


def test_every_length_up_to_the_default_limit_is_seen_as_a_frame():
    """Proven by trying them all, with steps where only the low byte moves."""
    for length in [*range(70_000), *range(70_000, MIB + 1, 251)]:
        head = length.to_bytes(4, "little") + b"k|"
        assert plan_framing(head, MIB) is Framing.FRAMES


@pytest.mark.parametrize("head", [b"GET_ACK\n", b"\n\n\n\n", b"a|1|", b"\xc3\xa9|1", b"\0\0\0x"])
def test_text_is_seen_as_text(head):
    """Four bytes without NUL in the fourth place are text, whatever else they are."""
    assert plan_framing(head, MIB) is Framing.TEXT


def test_a_printable_line_with_nul_in_the_fourth_place_is_text():
    """Three printable bytes spell too large a length at the default limit; nothing is awaited."""
    assert plan_framing(b"abc\0|1|1|x\n", MIB) is Framing.TEXT


@pytest.mark.parametrize("head", [b"", b"G", b"\n", b"\0\0\0"])
def test_fewer_than_four_bytes_tell_nothing_until_the_end(head):
    """The judgement waits for the fourth byte, so packets cannot change it; the end means text."""
    assert plan_framing(head, MIB) is None
    assert plan_framing(head, MIB, at_end=True) is Framing.TEXT


@pytest.mark.parametrize("head", [b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\xf0\x01\x00"])
def test_a_tls_handshake_at_a_plain_listener_is_named(head):
    """Its second form would pass for a frame of 66,326 bytes and be waited for."""
    with pytest.raises(UnexpectedTls, match="TLS"):
        plan_framing(head, MIB)


def test_a_frame_that_begins_like_tls_is_a_frame():
    """Lengths 0x000316 and 0x010316 look like a handshake until the sixth byte."""
    for length in (0x000316, 0x010316):
        assert plan_framing(length.to_bytes(4, "little"), MIB) is None
        assert plan_framing(length.to_bytes(4, "little") + b"k|", MIB) is Framing.FRAMES


def test_a_too_long_line_is_skipped_and_its_neighbours_are_whole():
    """It is reported with its length and its beginning, in its place."""
    splitter = Splitter(Framing.TEXT, 10)
    splitter.receive(b"before\n" + b"x" * 11 + b"\n" + b"y" * 10 + b"\nhalf")
    assert drain(splitter) == [b"before", TooLong(b"x" * 11, 11), b"y" * 10]
    assert splitter.take_half() == b"half"


def test_a_too_large_frame_is_drained_so_the_stream_keeps_its_place():
    """Walrus answers with an error and then reads the body as the next length."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive(frame(b"before") + frame(b"x" * 11) + frame(b"after") + b"\x05\0")
    assert drain(splitter) == [b"before", TooLong(b"x" * 11, 11), b"after"]
    assert splitter.take_half() == b"\x05\0"


@pytest.mark.parametrize("framing", list(Framing))
def test_skipping_64_mib_keeps_a_few_kib(framing):
    """Memory is bounded by the limit and one packet, not by what a peer sends."""
    splitter = Splitter(framing, 1000)
    total = 64 * MIB
    splitter.receive(total.to_bytes(4, "little") if framing is Framing.FRAMES else b"")
    for _ in range(64):
        assert splitter.next_message() is None
        splitter.receive(b"z" * MIB)
    splitter.receive((b"\n" if framing is Framing.TEXT else b"") + framing.encode(b"next"))
    assert splitter.next_message() == TooLong(b"z" * KEPT_BYTES, total)
    assert len(splitter._buffer) < 10
    assert splitter.next_message() == b"next"


def test_a_length_no_frame_can_have_raises_each_time():
    """Nothing says where the next frame would start, so the stream stays unreadable."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
    for _ in range(2):
        with pytest.raises(BadFrame, match="little-endian"):
            splitter.next_message()


def test_a_skip_cut_short_by_the_end_is_still_reported():
    """The half of a too long message is a too long message."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive((100).to_bytes(4, "little"))
    assert splitter.next_message() is None
    assert splitter.take_half() == TooLong(b"", 0)
    assert splitter.take_half() == b"", "said once"
    splitter = Splitter(Framing.TEXT, 10)
    splitter.receive(b"x" * 20)
    assert splitter.next_message() is None
    assert splitter.take_half() == TooLong(b"x" * 20, 20)
