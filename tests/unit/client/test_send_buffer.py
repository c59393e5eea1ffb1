"""The outbox: numbering, confirming, resuming. No sockets."""

import pytest

from cordwood.batch.lines import encode_lines_plain
from cordwood.client.effects import Address, parse_address
from cordwood.client.send_buffer import Message, SendBuffer
from cordwood.errors import InvalidRecord, ProtocolError, RequestError, StaleProducer
from cordwood.protocol.line import Framing, Welcome


def opened(last_n: int = 0, framing: Framing = Framing.TEXT) -> SendBuffer:
    outbox = SendBuffer(framing, 100)
    outbox.resume(Welcome("p", 0, last_n))
    return outbox


def test_records_are_numbered_from_one_after_what_the_broker_holds():
    """A producer that comes back under its name does not count from one again."""
    assert opened().add(Message("k", b"x"), 5) == 1
    outbox = opened(500)
    assert outbox.add(Message("k", "x"), 5) == 501
    assert outbox.take_unsent(1000) == b"k|5|501|x\n"


def test_numbers_wrap_and_are_confirmed_across_the_wrap():
    """After 2**31 - 1 comes 0; confirming 0 confirms what came before."""
    outbox = opened(2**31 - 2)
    assert [outbox.add(Message("k", b"x"), 5) for _ in range(3)] == [2**31 - 1, 0, 1]
    assert outbox.confirm(0)
    assert len(outbox) == 1
    assert outbox.confirm(1)
    assert len(outbox) == 0


def test_a_chunk_is_about_as_long_as_asked_and_counts_as_sent():
    """Nothing is taken twice, and nothing sent is forgotten before it is confirmed."""
    outbox = opened()
    for _ in range(4):
        outbox.add(Message("k", b"x", 7), 5)
    first, second = outbox.take_unsent(9), outbox.take_unsent(100)
    assert first == b"k|7|1|x\nk|7|2|x\n"
    assert second == b"k|7|3|x\nk|7|4|x\n"
    assert outbox.take_unsent(100) == b""
    assert (outbox.unsent_bytes, outbox.pending_bytes) == (0, 32)


def test_after_a_lost_connection_only_what_the_broker_lacks_is_sent_again():
    """Its welcome confirms; the rest goes out under the same numbers."""
    outbox = opened()
    for _ in range(3):
        outbox.add(Message("k", b"x", 7), 5)
    outbox.take_unsent(100)
    outbox.resume(Welcome("p", 0, 2))
    assert outbox.confirmed_n == 2
    assert outbox.unsent_bytes == outbox.pending_bytes == 8
    assert outbox.take_unsent(100) == b"k|7|3|x\n"


def test_an_old_confirmation_changes_nothing():
    """Acknowledgements of an earlier connection's records may repeat."""
    outbox = opened(10)
    outbox.add(Message("k", b"x"), 5)
    assert not outbox.confirm(10)
    assert not outbox.confirm(3)
    assert len(outbox) == 1


def test_a_confirmation_of_what_was_never_sent_is_refused():
    """Believing it would lose what is sent next."""
    with pytest.raises(ProtocolError, match="n=2"):
        opened(1).confirm(2)


def test_a_second_producer_under_the_same_name_is_found_out():
    """The broker holds numbers this one never gave."""
    outbox = opened(1)
    with pytest.raises(StaleProducer, match="another uses the name"):
        outbox.resume(Welcome("p", 0, 7))


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
    """A record that became a dead letter would still be covered by a later acknowledgement."""
    outbox = opened()
    with pytest.raises(InvalidRecord):
        outbox.add(message, 5)
    assert outbox.add(Message("k", b"x"), 5) == 1


@pytest.mark.parametrize(
    "message",
    [Message("k", b""), Message("é" * 124, b"a|b\r\0 "), Message(" ", b"\xff|", 2**63 - 1)],
)
def test_what_is_accepted_here_is_a_record_at_the_broker(message):
    """The two sides agree on what a line is; the broker's side is the one it really uses."""
    outbox = SendBuffer(Framing.TEXT, 1000)
    outbox.resume(Welcome("p", 0, 0))
    outbox.add(message, 5)
    batch = encode_lines_plain(outbox.take_unsent(1000), 5, producer=None)
    assert (batch.count, batch.rejected) == (1, [])


def test_frames_carry_newlines():
    """In a frame the payload may hold any byte."""
    outbox = opened(framing=Framing.FRAMES)
    outbox.add(Message(b"k", b"two\nlines"), 5)
    assert outbox.take_unsent(100) == b"\x0f\0\0\0k|5|1|two\nlines"


def test_addresses_are_read_as_users_write_them():
    """As users write them; anything else says how."""
    assert parse_address("127.0.0.1:5673") == Address("127.0.0.1", 5673)
    assert parse_address("[::1]:5673") == Address("::1", 5673)
    assert str(parse_address(("::1", 1))) == "[::1]:1"
    for wrong in ("localhost", ":5673", "h:", "h:x", "h:65536"):
        with pytest.raises(RequestError, match="HOST:PORT"):
            parse_address(wrong)
