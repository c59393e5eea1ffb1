"""How text and frames are told apart on one port, and split into messages."""

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
    """A frame is recognised by the NUL in its fourth byte, even if its length looks like text."""
    head = length.to_bytes(4, "little") + b"GE"
    assert plan_framing(head, MIB) is Framing.FRAMES


def test_every_length_up_to_the_default_limit_is_seen_as_a_frame():
    """Every frame length up to the default limit is recognised as a frame."""
    for length in [*range(70_000), *range(70_000, MIB + 1, 251)]:
        head = length.to_bytes(4, "little") + b"k|"
        assert plan_framing(head, MIB) is Framing.FRAMES


@pytest.mark.parametrize("head", [b"GET_ACK\n", b"\n\n\n\n", b"a|1|", b"\xc3\xa9|1", b"\0\0\0x"])
def test_text_is_seen_as_text(head):
    """Input whose fourth byte is not NUL is text."""
    assert plan_framing(head, MIB) is Framing.TEXT


def test_a_printable_line_with_nul_in_the_fourth_place_is_text():
    """Text with NUL as its fourth byte is text, because as a length it exceeds the limit."""
    assert plan_framing(b"abc\0|1|1|x\n", MIB) is Framing.TEXT


@pytest.mark.parametrize("head", [b"", b"G", b"\n", b"\0\0\0"])
def test_fewer_than_four_bytes_tell_nothing_until_the_end(head):
    """The framing is not decided before the fourth byte. If the input ends earlier, it is text."""
    assert plan_framing(head, MIB) is None
    assert plan_framing(head, MIB, at_end=True) is Framing.TEXT


@pytest.mark.parametrize("head", [b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\xf0\x01\x00"])
def test_a_tls_handshake_at_a_plain_listener_is_named(head):
    """A TLS handshake on a plaintext listener raises ``UnexpectedTls``.

    Otherwise its second form would be taken for a frame of 66,326 bytes.
    """
    with pytest.raises(UnexpectedTls, match="TLS"):
        plan_framing(head, MIB)


def test_a_frame_that_begins_like_tls_is_a_frame():
    """Frames of length 0x000316 and 0x010316 look like TLS until the sixth byte."""
    for length in (0x000316, 0x010316):
        assert plan_framing(length.to_bytes(4, "little"), MIB) is None
        assert plan_framing(length.to_bytes(4, "little") + b"k|", MIB) is Framing.FRAMES


def test_a_too_long_line_is_skipped_and_its_neighbours_are_whole():
    """An oversized line is reported in order with its length and its first bytes."""
    splitter = Splitter(Framing.TEXT, 10)
    splitter.receive(b"before\n" + b"x" * 11 + b"\n" + b"y" * 10 + b"\nhalf")
    assert drain(splitter) == [b"before", TooLong(b"x" * 11, 11), b"y" * 10]
    assert splitter.take_half() == b"half"


def test_a_too_large_frame_is_drained_so_the_stream_keeps_its_place():
    """An oversized frame is skipped, so that the next frame is read from its start."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive(frame(b"before") + frame(b"x" * 11) + frame(b"after") + b"\x05\0")
    assert drain(splitter) == [b"before", TooLong(b"x" * 11, 11), b"after"]
    assert splitter.take_half() == b"\x05\0"


@pytest.mark.parametrize("framing", list(Framing))
def test_skipping_64_mib_keeps_a_few_kib(framing):
    """Skipping an oversized message needs memory for the limit and one packet only."""
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
    """An invalid frame length raises ``BadFrame`` on each call."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
    for _ in range(2):
        with pytest.raises(BadFrame, match="little-endian"):
            splitter.next_message()


def test_a_skip_cut_short_by_the_end_is_still_reported():
    """An oversized message that is cut off by the end is reported once."""
    splitter = Splitter(Framing.FRAMES, 10)
    splitter.receive((100).to_bytes(4, "little"))
    assert splitter.next_message() is None
    assert splitter.take_half() == TooLong(b"", 0)
    assert splitter.take_half() == b"", "said once"
    splitter = Splitter(Framing.TEXT, 10)
    splitter.receive(b"x" * 20)
    assert splitter.next_message() is None
    assert splitter.take_half() == TooLong(b"x" * 20, 20)
