"""The send buffer numbers, confirms and resends records. It uses no sockets."""

import pytest

from cordwood.batch.lines import encode_lines_plain
from cordwood.client.send_buffer import Message, SendBuffer
from cordwood.errors import InvalidRecord, ProtocolError, StaleProducer
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.replies import Welcome


def opened(last_n: int = 0, framing: Framing = Framing.TEXT) -> SendBuffer:
    buffer = SendBuffer(framing, 100)
    buffer.resume(Welcome("p", 0, last_n))
    return buffer


def test_records_are_numbered_from_one_after_what_the_broker_holds():
    """Numbering starts at 1, or after the last number that the broker holds for this producer."""
    assert opened().add(Message("k", b"x"), 5) == 1
    buffer = opened(500)
    assert buffer.add(Message("k", "x"), 5) == 501
    assert buffer.take_unsent(1000) == b"k|5|501|x\n"


def test_numbers_wrap_and_are_confirmed_across_the_wrap():
    """Record numbers wrap to 0 after 2**31 - 1. Confirming 0 confirms all records before it."""
    buffer = opened(2**31 - 2)
    assert [buffer.add(Message("k", b"x"), 5) for _ in range(3)] == [2**31 - 1, 0, 1]
    assert buffer.confirm(0)
    assert len(buffer) == 1
    assert buffer.confirm(1)
    assert len(buffer) == 0


def test_a_chunk_is_about_as_long_as_asked_and_counts_as_sent():
    """A chunk is about as long as asked.

    Records stay pending after they are sent, until confirmed.
    """
    buffer = opened()
    for _ in range(4):
        buffer.add(Message("k", b"x", 7), 5)
    first, second = buffer.take_unsent(9), buffer.take_unsent(100)
    assert first == b"k|7|1|x\nk|7|2|x\n"
    assert second == b"k|7|3|x\nk|7|4|x\n"
    assert buffer.take_unsent(100) == b""
    assert (buffer.unsent_bytes, buffer.pending_bytes) == (0, 32)


def test_after_a_lost_connection_only_what_the_broker_lacks_is_sent_again():
    """After a reconnect, only records that the broker lacks are resent, with the same numbers."""
    buffer = opened()
    for _ in range(3):
        buffer.add(Message("k", b"x", 7), 5)
    buffer.take_unsent(100)
    buffer.resume(Welcome("p", 0, 2))
    assert buffer.confirmed_n == 2
    assert buffer.unsent_bytes == buffer.pending_bytes == 8
    assert buffer.take_unsent(100) == b"k|7|3|x\n"


def test_an_old_confirmation_changes_nothing():
    """A confirmation of records that are already confirmed changes nothing."""
    buffer = opened(10)
    buffer.add(Message("k", b"x"), 5)
    assert not buffer.confirm(10)
    assert not buffer.confirm(3)
    assert len(buffer) == 1


def test_a_confirmation_of_what_was_never_sent_is_refused():
    """A confirmation of a number that was never sent raises ``ProtocolError``."""
    with pytest.raises(ProtocolError, match="n=2"):
        opened(1).confirm(2)


def test_a_second_producer_under_the_same_name_is_found_out():
    """A broker that holds numbers this producer never sent means another producer has its name."""
    buffer = opened(1)
    with pytest.raises(StaleProducer, match="another producer uses the same name"):
        buffer.resume(Welcome("p", 0, 7))


@pytest.mark.parametrize(
    "message",
    [
        Message("", b"x"),
        Message("a|b", b"x"),
        Message("a\nb", b"x"),
        Message("a\x7fb", b"x"),
        Message("é" * 125, b"x"),
        Message("k", b"x", -1),
        Message("k", b"x", 2**63),
        Message("k", b"ends with\r"),
        Message("k", b"two\nlines"),
        Message("k", b"x" * 100),
    ],
)
def test_what_would_not_parse_at_the_broker_is_refused_and_takes_no_number(message):
    """A record that the broker could not parse is refused here, and gets no number.

    Otherwise it would become a dead letter that a later acknowledgement still covers.
    """
    buffer = opened()
    with pytest.raises(InvalidRecord):
        buffer.add(message, 5)
    assert buffer.add(Message("k", b"x"), 5) == 1


@pytest.mark.parametrize(
    "message",
    [Message("k", b""), Message("é" * 124, b"a|b\r\0 "), Message(" ", b"\xff|", 2**63 - 1)],
)
def test_what_is_accepted_here_is_a_record_at_the_broker(message):
    """Every record that the client accepts is parsed as one record by the broker's own parser."""
    buffer = SendBuffer(Framing.TEXT, 1000)
    buffer.resume(Welcome("p", 0, 0))
    buffer.add(message, 5)
    batch = encode_lines_plain(buffer.take_unsent(1000), 5, producer=None)
    assert (batch.count, batch.rejected) == (1, [])


def test_frames_carry_newlines():
    """A payload in a frame may contain newlines."""
    buffer = opened(framing=Framing.FRAMES)
    buffer.add(Message(b"k", b"two\nlines"), 5)
    assert buffer.take_unsent(100) == b"\x0f\0\0\0k|5|1|two\nlines"
