"""Replies and records of the line protocol are parsed as they were encoded."""

import pytest

from cordwood import errors
from cordwood.errors import CordwoodError, ProtocolError
from cordwood.model import Header, Record
from cordwood.protocol.line import replies as r
from cordwood.protocol.line.framing import Framing
from cordwood.protocol.line.records import Line, encode_records, parse_record
from cordwood.protocol.line.replies import Welcome, encode_error
from cordwood.protocol.line.serial import NOTHING_YET, is_after, next_n

STAMPS = (Header("ts", b"1700"), Header("n", b"499"))


def record(key=b"test.probe", value=b"batch1", headers=STAMPS):
    return Record(498, 1699, key, value, headers)


def test_a_record_is_a_line_awk_can_split():
    """A record is one line of six fields. An ordinary payload is not escaped."""
    data = encode_records([record(), record(value=rb'{"a|b":"c\"d"}')], Framing.TEXT)
    assert data == (
        b'499|1699|test.probe|1700|499|batch1\n499|1699|test.probe|1700|499|{"a|b":"c\\"d"}\n'
    )


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"two\nlines", rb"\etwo\nlines"),
        (rb"\\host\share", rb"\e\\\\host\\share"),
        (rb"C:\new", rb"C:\new"),
        (rb"\N", rb"\e\\N"),
        (None, rb"\N"),
        (b"", b""),
        (b"ends with cr\r", b"ends with cr\r"),
    ],
)
def test_payloads_that_would_break_the_line_are_escaped_and_no_others(payload, text):
    r"""A payload with a newline or a leading backslash is escaped after ``\e``. Null is ``\N``."""
    data = encode_records([record(value=payload)], Framing.TEXT)
    assert data == b"499|1699|test.probe|1700|499|" + text + b"\n"
    assert parse_record(data[:-1], Framing.TEXT).payload == payload


def test_frames_carry_payloads_raw_and_leave_null_out():
    """Payloads in frames are not escaped, and null still differs from empty."""
    values = [b"\\N\n|\0", b"", None]
    data = encode_records([record(value=value) for value in values], Framing.FRAMES)
    bodies = []
    while data:
        length = int.from_bytes(data[:4], "little")
        bodies.append(data[4 : 4 + length])
        data = data[4 + length :]
    assert bodies[0].endswith(b"|\\N\n|\0")
    assert [parse_record(body, Framing.FRAMES).payload for body in bodies] == values


def test_a_kafka_record_has_empty_stamps_and_any_key():
    """A record from a Kafka client may have any key bytes, and no ``ts`` and ``n`` headers."""
    odd = record(key=b"a|b\\c\n\xff", headers=(Header("n", b"x"), Header("z", None)))
    data = encode_records([odd, record(key=None, headers=())], Framing.TEXT)
    first, second = data.splitlines()
    assert first == b"499|1699|a\\pb\\\\c\\n\xff|||batch1"
    key = "a|b\\c\n\udcff"
    assert parse_record(first, Framing.TEXT) == Line(499, 1699, key, "", None, b"batch1")
    assert parse_record(second, Framing.TEXT).routing_key is None


@pytest.mark.parametrize(
    "body", [b"", b"1|2|k|t|3", b"x|2|k|t|3|p", b"1|2|k|t|n|p", rb"1|2|\q|t|3|p", rb"1|2|k|t|3|\x"]
)
def test_what_is_no_record_is_a_protocol_error(body):
    """A malformed record line raises ``ProtocolError``."""
    with pytest.raises(ProtocolError):
        parse_record(body, Framing.TEXT)


def test_every_error_crosses_the_wire_as_itself():
    """Every error is encoded as ``ERR CODE text`` on one line and parsed to the same class."""
    kinds = [
        k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, CordwoodError)
    ]
    for kind in kinds:
        body = encode_error(kind("what\nwas wrong"))
        assert body == f"ERR {kind.name} what was wrong".encode()
        again = r.parse_error(body)
        assert type(again) is kind
        assert str(again) == "what was wrong"
    assert type(r.parse_error(b"ERR DISK_FULL no space")) is errors.DiskFull


def test_an_error_with_more_to_carry_crosses_the_wire_as_its_family():
    """An error class defined outside of ``errors`` is parsed as its parent class."""

    class Detailed(errors.CorruptionError):
        def __init__(self, text, position):
            super().__init__(text)
            self.position = position

    r._errors_by_name.cache_clear()
    again = r.parse_error(encode_error(Detailed("bad", 7)))
    r._errors_by_name.cache_clear()
    assert (type(again), str(again)) == (errors.CorruptionError, "bad")


def test_an_unknown_code_is_quoted():
    """An error with an unknown code keeps the code in its message."""
    assert str(r.parse_error(b"ERR NEW_CODE some text")) == "NEW_CODE some text"
    assert str(r.parse_error(b"ERR")) == ""


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("payload", [b"x", b"", None, b"a\nb", b"EMPTY"])
def test_got_round_trips(framing, payload):
    """The payload of GET is the same in both framings, and null differs from empty."""
    body = r.encode_got(payload, framing)
    assert r.parse_got(body, framing) == payload
    assert framing is Framing.FRAMES or b"\n" not in body


def test_simple_replies_round_trip():
    """Acknowledgements, counts, the reply to HELLO and JSON are parsed as they were encoded."""
    assert r.parse_ack(r.encode_ack(500)) == 500
    assert r.parse_count(r.encode_count(2)) == 2
    assert r.parse_welcome(r.encode_welcome(Welcome("p", 3, 500))) == Welcome("p", 3, 500)
    assert r.parse_json(r.encode_json({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (r.parse_ack, b"ACK"),
        (r.parse_ack, b"ACK -1"),
        (r.parse_ack, b"OK 1"),
        (r.parse_ok, b"OKAY"),
        (r.parse_welcome, b"OK p 1"),
        (r.parse_welcome, b"OK p x 1"),
        (r.parse_json, b"[1]"),
        (r.parse_json, b"{"),
        (r.parse_json, b"\xff"),
        (r.parse_count, b"OK"),
    ],
)
def test_a_foreign_reply_is_a_protocol_error(parse, body):
    """A malformed reply raises ``ProtocolError``."""
    with pytest.raises(ProtocolError):
        parse(body)


def test_err_is_raised_by_every_parser():
    """Every reply parser raises an ERR reply as an error."""
    for parse in (r.parse_ack, r.parse_count, r.parse_welcome, r.parse_json, r.parse_ok):
        with pytest.raises(errors.UnknownTopic, match="no topic"):
            parse(b"ERR UNKNOWN_TOPIC no topic t")


def test_n_counts_from_one_and_wraps():
    """Record numbers start at 1 and wrap. They are compared by serial number arithmetic."""
    assert next_n(NOTHING_YET) == 1
    assert next_n(2**31 - 1) == 0
    assert is_after(0, 2**31 - 1)
    assert is_after(1, 0)
    assert not is_after(5, 5)
    assert not is_after(2**31 - 1, 0)
