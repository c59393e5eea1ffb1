"""Records as JSON lines, as ``consume -J`` prints and ``produce -J`` reads them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cli.output.record_json import BadLine, encode_json, parse_json
from cordwood.model import Header, Record, TopicPartition

TP = TopicPartition("t", 2)
DATA = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode())


def test_json_keeps_bytes_that_are_not_text():
    """UTF-8 bytes are printed as text. Other bytes are printed as base64 in ``value_base64``."""
    record = Record(7, 1_700_000_000_123, b"k", b"\xff\x00", (Header("a", b"1"), Header("b", None)))
    shown = json.loads(encode_json(TP, record))
    assert shown["key"] == "k"
    assert shown["value_base64"] == "/wA="
    assert "value" not in shown
    assert shown["headers"] == [{"key": "a", "value": "1"}, {"key": "b", "value": None}]


def test_headers_are_there_without_headers():
    """A record without headers has an empty list, so that a reader needs no special case."""
    assert json.loads(encode_json(TP, Record(0, 0, None, None)))["headers"] == []


@given(
    st.integers(-1, 2**63 - 1),
    DATA,
    DATA,
    st.lists(st.builds(Header, st.text(max_size=9), DATA), max_size=3),
)
def test_what_consume_prints_is_what_produce_reads(timestamp_ms, key, value, headers):
    """Parsing an encoded record gives back its partition, time, key, value and headers."""
    record = Record(7, timestamp_ms, key, value, tuple(headers))
    assert parse_json(encode_json(TP, record)) == (2, timestamp_ms, key, value, tuple(headers))


def test_a_value_is_enough():
    """Key, headers, partition and timestamp can be left out."""
    assert parse_json(b'{"value": "v"}') == (None, None, None, b"v", ())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no json", "it is not JSON: no json"),
        ("[1]", "not a JSON object"),
        ('{"key": "k"}', "has no value"),
        ('{"value": {"a": 1}}', "value is not text; quote it"),
        ('{"vaule": "x"}', "did you mean value"),
        ('{"value": "x", "value_base64": "eA=="}', "both value and value_base64"),
        ('{"value_base64": "%"}', "value_base64 is not base64"),
        ('{"value_base64": null}', "value_base64 is not base64"),
        ('{"value": "x", "partition": -1}', "partition is -1, not a whole number"),
        ('{"value": "x", "partition": true}', "partition is true, not a whole number"),
        ('{"value": "x", "timestamp": 1.5}', "timestamp is 1.5, not a whole number"),
        ('{"value": "x", "headers": {"a": "b"}}', "headers is not a list"),
        ('{"value": "x", "headers": [{"value": "b"}]}', "a header has a key"),
        ('{"value": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line, why):
    """Each mistake in a line is refused with a message that names it."""
    with pytest.raises(BadLine) as refused:
        parse_json(line.encode())
    assert why in str(refused.value)
