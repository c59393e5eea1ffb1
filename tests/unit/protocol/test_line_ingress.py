"""The ingress protocol: blocks of lines, frames, HELLO, and input that is not a record."""

import pytest

from cordwood.errors import BadFrame, BadHello, UnexpectedTls
from cordwood.protocol.line.framing import KEPT_BYTES, Framing, TooLong
from cordwood.protocol.line.ingress import (
    Frames,
    HalfLine,
    Hello,
    IngressConnection,
    Lines,
    encode_hello,
    parse_hello,
)

frame = Framing.FRAMES.encode


def events(connection: IngressConnection) -> list[object]:
    found = list(iter(connection.next_event, None))
    return [Lines(bytes(e.block)) if isinstance(e, Lines) else e for e in found]


def test_complete_lines_leave_in_one_block_and_the_tail_stays():
    """Complete lines are returned as one block. An incomplete line waits for its end."""
    connection = IngressConnection(100)
    connection.receive(b"a|1|1|x\nb|1|2|y\nc|1")
    assert events(connection) == [Lines(b"a|1|1|x\nb|1|2|y\n")]
    connection.receive(b"|3|z\n")
    assert events(connection) == [Lines(b"c|1|3|z\n")]
    connection.receive_eof()
    assert events(connection) == []


def test_a_block_without_a_tail_is_not_copied():
    """A block of complete lines is returned without a copy."""
    connection = IngressConnection(1000)
    connection.receive(b"first\n")
    events(connection)
    data = b"a|1|1|x\n" * 50
    connection.receive(data)
    assert connection.next_event().block is data
    connection.receive(data + b"a half")
    block = connection.next_event().block
    assert isinstance(block, memoryview)
    assert block.nbytes == len(data)


@pytest.mark.parametrize(
    ("line", "hello"),
    [
        (b"HELLO p1", Hello("p1")),
        (b"hello p-1.x_Y 7\r", Hello("p-1.x_Y", 7)),
        (b"HELLO p 32767", Hello("p", 32767)),
        (b"HELLO|1|1|x", None),
        (b"HELLOS p", None),
        (b"", None),
    ],
)
def test_hello_is_distinguished_from_records(line, hello):
    """HELLO alone or before a space starts a session. Before a bar it is a routing key."""
    assert parse_hello(line) == hello


@pytest.mark.parametrize(
    "line",
    [b"HELLO", b"HELLO ", b"HELLO a b c", b"HELLO p|q", b"HELLO " + b"p" * 129, b"HELLO \xff"]
    + [b"HELLO p " + epoch for epoch in (b"-1", b"x", b"32768", b"9" * 5000, b"\xd9\xa1")],
)
def test_a_hello_that_names_no_producer_is_refused(line):
    """A HELLO without a valid producer name is refused."""
    connection = IngressConnection(10_000)
    with pytest.raises(BadHello):
        connection.receive(line + b"\n")


@pytest.mark.parametrize("wrap", [Framing.TEXT.encode, frame])
def test_hello_counts_only_as_the_first_message(wrap):
    """HELLO is recognised only as the first message. Later it is an ordinary line."""
    connection = IngressConnection(100)
    connection.receive(wrap(encode_hello("p", 3)) + wrap(b"HELLO q") + wrap(b"a|1|1|x"))
    first, *rest = events(connection)
    assert first == Hello("p", 3)
    assert rest in ([Lines(b"HELLO q\na|1|1|x\n")], [Frames((b"HELLO q", b"a|1|1|x"))])


@pytest.mark.parametrize("opening", [b"\n", b"x" * 200 + b"\n"])
def test_hello_after_an_empty_or_too_long_line_is_not_first(opening):
    """HELLO after an empty or an oversized line is not recognised."""
    connection = IngressConnection(100)
    connection.receive(opening + b"HELLO p\n")
    assert Hello("p") not in events(connection)
    dripped = IngressConnection(100)
    for byte in opening + b"HELLO p\n":
        dripped.receive(bytes([byte]))
    assert Hello("p") not in events(dripped)


@pytest.mark.parametrize("cut", [1, 50, 101, 150, 260])
def test_too_long_lines_stand_in_their_place_however_they_arrive(cut):
    """Oversized lines are reported in order, and no other line is lost, in any packet split."""
    data = b"a|1|1|x\n" + b"L" * 101 + b"\nb|1|2|y\n" + b"M" * 150 + b"\n" + b"N" * 100 + b"\n"
    connection = IngressConnection(100)
    connection.receive(data[:cut])
    connection.receive(data[cut:])
    joined = [e if isinstance(e, TooLong) else e.block for e in events(connection)]
    longs = [e for e in joined if isinstance(e, TooLong)]
    assert longs == [TooLong(b"L" * 101, 101), TooLong(b"M" * 150, 150)]
    lines = b"".join(e for e in joined if isinstance(e, bytes))
    assert lines == b"a|1|1|x\nb|1|2|y\n" + b"N" * 100 + b"\n"


def test_a_64_mib_line_costs_a_few_kib():
    """Of an oversized line, only its first bytes and its length are kept in memory."""
    connection = IngressConnection(2**20)
    for _ in range(64):
        connection.receive(b"x" * 2**20)
        assert len(connection._tail) <= 2**20
    connection.receive(b"\nok|1|1|x\n")
    assert events(connection) == [TooLong(b"x" * KEPT_BYTES, 64 * 2**20), Lines(b"ok|1|1|x\n")]


def test_a_half_line_at_the_end_is_not_a_record():
    """An incomplete line at the end of the connection is not a record."""
    connection = IngressConnection(100)
    connection.receive(b"a|1|1|x\nb|1|2|hal")
    connection.receive_eof()
    assert events(connection) == [Lines(b"a|1|1|x\n"), HalfLine(b"b|1|2|hal")]


@pytest.mark.parametrize(("sent", "left"), [(b"", []), (b"ab", [HalfLine(b"ab")])])
def test_an_end_before_four_bytes_is_text(sent, left):
    """A connection that ends before four bytes is treated as text."""
    connection = IngressConnection(100)
    connection.receive(sent)
    connection.receive_eof()
    assert events(connection) == left


def test_short_lines_are_handed_out_at_the_end_if_never_judged():
    """A complete line of three bytes is returned at the end of the connection."""
    connection = IngressConnection(100)
    connection.receive(b"ab\n")
    assert events(connection) == []
    connection.receive_eof()
    assert events(connection) == [Lines(b"ab\n")]


def test_frames_carry_newlines_and_nul():
    """A frame may contain newlines and NUL."""
    connection = IngressConnection(100)
    connection.receive(frame(b"a|1|1|x\ny\0z") + frame(b"b|1|2|") + frame(b"c")[:3])
    connection.receive_eof()
    assert events(connection) == [Frames((b"a|1|1|x\ny\0z", b"b|1|2|")), HalfLine(b"\x01\0\0")]


def test_frames_before_a_bad_one_are_not_lost():
    """Complete frames before an invalid length are returned."""
    connection = IngressConnection(100)
    with pytest.raises(BadFrame):
        connection.receive(frame(b"a|1|1|x") + b"\xff\xff\xff\xff")
    assert events(connection) == [Frames((b"a|1|1|x",))]


def test_replies_use_the_framing_of_the_peer():
    """Replies use the framing of the peer, and text before the framing is known."""
    text, frames = IngressConnection(100), IngressConnection(100)
    assert text.encode(b"ERR X") == b"ERR X\n"
    text.receive(b"HELLO p\n")
    frames.receive(frame(b"HELLO p"))
    assert text.encode(b"ACK 1") == b"ACK 1\n"
    assert frames.encode(b"ACK 1") == b"\x05\0\0\0ACK 1"


def test_tls_at_the_plain_listener_is_a_protocol_error():
    """A TLS handshake raises ``UnexpectedTls``, and none of its bytes become records."""
    connection = IngressConnection(2**20)
    with pytest.raises(UnexpectedTls):
        connection.receive(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert events(connection) == []


def test_what_is_a_block_is_what_would_be_handed_out_as_it_is():
    """``is_block`` is true for complete lines if no other input is pending."""
    connection = IngressConnection(20)
    whole = b"a|1|1|x\n"
    assert not connection.is_block(whole), "the first line may be a HELLO"
    connection.receive(whole)
    assert not connection.is_block(whole), "one waits to be taken, and comes before it"
    events(connection)
    assert connection.is_block(whole)
    assert not connection.is_block(b"a|1|1")
    assert not connection.is_block(whole * 3), "a line too long may be among them"
    connection.receive(b"a|1|1")
    assert not connection.is_block(b"|x\n"), "it ends a line that has begun"
    connection.receive(b"|x\n")
    events(connection)
    connection.receive(b"y" * 50)
    assert not connection.is_block(whole), "it ends a line that is too long"


def test_a_framed_connection_has_no_blocks_of_lines():
    """A framed connection has no blocks of lines."""
    connection = IngressConnection(100)
    connection.receive(b"\x08\0\0\0a|1|1|x\n")
    events(connection)
    assert not connection.is_block(b"\x08\0\0\0a|1|1|x\n")


def test_a_reused_buffer_may_be_shown_again_and_again():
    """The caller may reuse its receive buffer once it has taken the events."""
    text = b"".join(b"k|1|%d|%s\n" % (n, b"x" * (n % 90)) for n in range(300))
    text += b"y" * 150 + b"\n" + b"k|1|300|last\n" + b"half a li"
    for size in (1, 7, 64, 1000, len(text)):
        connection, taken = IngressConnection(120), []
        buffer = bytearray(size)
        for start in range(0, len(text), size):
            part = text[start : start + size]
            buffer[: len(part)] = part
            connection.receive(memoryview(buffer)[: len(part)])
            taken += events(connection)
            buffer[:] = bytes(size)
        connection.receive_eof()
        taken += events(connection)
        lines = b"".join(bytes(event.block) for event in taken if isinstance(event, Lines))
        assert lines == text.replace(b"y" * 150 + b"\n", b"").removesuffix(b"half a li"), size
        assert [type(event) for event in taken if not isinstance(event, Lines)] == [
            TooLong,
            HalfLine,
        ]
