"""The headers of a dead letter."""

from __future__ import annotations

from cordwood.decide.deadletters import headers_for_line, headers_for_record, parse_cause
from cordwood.model import Header


def test_a_record_s_cause_is_read_back():
    """The reason, detail and origin are parsed from the headers, among the record's own headers."""
    headers = (Header("own", b"1"), *headers_for_record("loop", "why", "append", 3, 14))
    cause = parse_cause(headers)
    assert (cause.reason, cause.detail) == ("loop", "why")
    assert (cause.topic, cause.partition, cause.offset) == ("append", 3, 14)


def test_a_line_s_cause_names_its_peer():
    """The cause of a rejected line names the peer and has no topic or offset."""
    cause = parse_cause(headers_for_line("too_long", "127.0.0.1:1"))
    assert (cause.reason, cause.source, cause.topic, cause.offset) == (
        "too_long",
        "127.0.0.1:1",
        None,
        None,
    )


def test_a_letter_that_died_twice_has_its_last_cause():
    """A letter that was replayed and rejected again has the cause of the last rejection."""
    headers = [
        *headers_for_record("loop", "", "a", 0, 1),
        *headers_for_record("no_key", "", "b", 0, 2),
    ]
    assert parse_cause(headers)[0::3] == ("no_key", "b")


def test_headers_that_are_not_ours_are_no_cause():
    """Null values, invalid numbers and other headers are ignored."""
    cause = parse_cause(
        [Header("x", b"y"), Header("dlq.offset", b"many"), Header("dlq.reason", None)]
    )
    assert set(cause) == {None}
