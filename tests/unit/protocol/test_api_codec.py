"""Decoding of JSON bodies and URL parameters to messages. Errors name the field."""

from __future__ import annotations

import json
from typing import Literal

import msgspec
import pytest

from cordwood.errors import RequestError
from cordwood.protocol.api.call import Count, Text
from cordwood.protocol.api.codec import (
    COUNTED_BYTES,
    count_values,
    decode_json,
    decode_json_on_thread,
    decode_params,
    decode_reply,
    encode_call,
    encode_json,
    given_fields,
)
from cordwood.protocol.api.compaction import CompactionCall, RenewLease
from cordwood.protocol.api.deliveries import Deliver, RecordReplay
from cordwood.protocol.api.readers import ChangeReader, ListReaders, ReaderList, ReaderRow, SetRoute
from cordwood.protocol.api.topics import ListTopics


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    count: Count = 7


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["one", "two"]
    parts: tuple[Part, ...]
    size: Count | None = None
    is_dry: bool = False
    words: tuple[Text, ...] = ()


GOOD = {"kind": "one", "parts": [{"name": "a"}, {"name": "b", "count": 0}]}


def test_a_message_is_decoded_with_its_defaults():
    """Missing fields, null and empty text decode to the field's default."""
    options = {**GOOD, "size": None, "words": "", "is_dry": True}
    made = Order("one", (Part("a"), Part("b", 0)), None, is_dry=True)
    assert decode_json(Order, json.dumps(options).encode()) == made
    assert decode_json_on_thread(Order, json.dumps(options).encode()) == made


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "three"}, r"\$\.kind: expected one or two, got another value"),
        ({"kind": None}, r"\$\.kind: missing; expected one or two"),
        ({"kind": ["one"]}, r"\$\.kind: expected str, got array"),
        ({"parts": {}}, r"\$\.parts: expected array, got object"),
        ({"parts": [7]}, r"\$\.parts\[0\]: expected object, got int"),
        ({"parts": [{"name": "a"}, {}]}, r"\$\.parts\[1\]\.name: missing; expected string"),
        ({"parts": [{"name": 3}]}, r"\$\.parts\[0\]\.name: expected str, got int"),
        ({"parts": [{"name": "a", "count": -1}]}, r"\$\.parts\[0\]\.count: expected int >= 0"),
        ({"parts": [{"name": "a", "count": 2**63}]}, r"count: expected int <= 9223372036854775807"),
        ({"parts": [{"name": "a", "count": 10**400}]}, r"count: expected int <= "),
        ({"parts": [{"name": "a", "count": True}]}, r"\[0\]\.count: expected int, got bool"),
        ({"parts": [{"name": "a", "count": 1.0}]}, r"\[0\]\.count: expected int, got float"),
        (
            {"parts": [{"name": "a", "coumt": 1}]},
            r"\$\.parts\[0\]\.coumt: unknown field; did you mean count\?",
        ),
        ({"parts": [{"name": "\ud800"}]}, "'name' holds half of a surrogate pair"),
        ({"parts": [{"name": "x" * 70_000}]}, r"\[0\]\.name: expected str of length <= 65536"),
        ({"is_dry": "true"}, r"\$\.is_dry: expected bool, got str"),
        ({"is_dry": 1}, r"\$\.is_dry: expected bool, got int"),
        ({"words": ["a", 2]}, r"\$\.words\[1\]: expected str, got int"),
        ({"words": ["a", "\udfff"]}, "'words' holds half of a surrogate pair"),
        ({"x\ud800": 1}, "holds half of a surrogate pair"),
        ({"π": 1}, r"\$\.\\u03c0: unknown field; there are kind, parts"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(change, complaint):
    """An invalid field is refused with its path, its type and what is expected."""
    with pytest.raises(RequestError, match=complaint):
        decode_json(Order, json.dumps({**GOOD, **change}).encode())
    with pytest.raises(RequestError, match=complaint):
        decode_json_on_thread(Order, json.dumps({**GOOD, **change}).encode())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"[1]", r"\$: expected object, got array"),
        (b"null", r"\$: expected object, got null"),
        (b"7", r"\$: expected object, got int"),
        (b'"text"', r"\$: expected object, got str"),
        (b"{", "the body is not JSON"),
        (b"\xff\xfe{\0", "the body is not JSON"),
        (b"{}" + b"\0" * 3, "the body is not JSON"),
        (b'{"topic": "\xed\xa0\x80"}', "the body is not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"kind": "one", "kind": "two"}', "'kind' appears twice"),
        (b'{"a": {"x": 1, "x": 1}}', "'x' appears twice"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "the body is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_in_a_sentence(body, complaint):
    """Invalid JSON is refused with a one-line error.

    This includes what Python's parser would accept, or fail on in other ways.
    """
    with pytest.raises(RequestError, match=complaint):
        decode_json(Order, body)
    with pytest.raises(RequestError, match=complaint):
        decode_json_on_thread(Order, body)


def test_half_a_surrogate_pair_outside_an_object_is_refused():
    """Text that is not UTF-8 is refused wherever it stands, also where an object is expected."""
    for body in (b'"\\ud800"', b'["\\ud800"]', b'{"topic": [["\\ud800"]]}'):
        with pytest.raises(RequestError):
            decode_json(SetRoute, body)


def test_a_replays_record_takes_only_its_fields():
    """A replay record with unknown fields or values that are not finite is refused."""
    deep = b'{"id": "r", "record": ' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}"
    with pytest.raises(RequestError, match=r"\$\.record\.a: unknown field; there are"):
        decode_json(RecordReplay, deep)
    with pytest.raises(RequestError, match=r"\$\.record\.scanned: expected int, got float"):
        decode_json(RecordReplay, b'{"id": "r", "record": {"scanned": 1e999}}')


def test_the_action_decides_which_fields_a_report_of_compaction_has():
    """The action decides which fields are required, and an unknown action lists the valid ones."""
    for body, complaint in (
        ({}, r"\$\.action: missing; expected begin, renew, finish, fail or release"),
        ({"action": "dance"}, r"\$\.action: expected begin, renew, finish, fail or release"),
        ({"action": "fail", "topic": "t", "partition": 0}, r"\$\.error: missing; expected string"),
    ):
        with pytest.raises(RequestError, match=complaint):
            decode_json(CompactionCall, json.dumps(body).encode())


def test_a_request_is_decoded_as_it_was_encoded():
    """A request is decoded as it was encoded, from the body or from URL parameters."""
    renew = RenewLease("t", 3, "token")
    method, path, params, body = encode_call(renew)
    assert (method, path, params) == ("POST", "/api/v1/compaction", {})
    assert decode_json(CompactionCall, body) == renew
    assert encode_call(ListReaders("t")) == ("GET", "/api/v1/readers", {"topic": "t"}, None)
    assert encode_call(ListReaders())[2] == {}


def test_a_reply_is_decoded_as_it_was_encoded_and_nothing_else_is():
    """A reply ignores unknown fields of a newer broker. A missing field is an error."""
    reply = ReaderList((ReaderRow("r", "t", 0, 1, 2, 3),))
    assert decode_reply(ReaderList, encode_json(reply)) == reply
    assert decode_reply(ReaderList, b'{"readers": [], "newer": 1}') == ReaderList(())
    with pytest.raises(ValueError, match="missing required field `readers`"):
        decode_reply(ReaderList, b"{}")


def test_an_empty_body_is_an_empty_object():
    """An empty body is decoded as an empty object."""
    with pytest.raises(
        RequestError, match=r"\$\.action: missing; expected advance, register, remove or reset"
    ):
        decode_json(ChangeReader, b"")


def test_parameters_are_texts_and_digits():
    """URL parameters are text or decimal digits. Repeated and unknown ones are refused."""
    assert decode_params(ListTopics, "name=a%20b&brief=") == ListTopics("a b")
    assert decode_params(Part, "name=x&count=12") == Part("x", 12)
    for query, complaint in (
        ("name=a&name=b", "twice"),
        ("nane=a", "did you mean name"),
        ("name=%ff", "cannot be parsed"),
        ("name=x&count=1x", r"\$\.count: expected int, got str"),
        ("name=x&count=99999999999999999999", r"\$\.count: expected int"),
        ("name=x&count=" + "9" * 5000, r"\$\.count: expected int"),
        ("name=x&count=%C2%B2", r"\$\.count: expected int"),  # str.isdigit accepts it, int does not
        ("name=x&count=%D9%A3", r"\$\.count: expected int"),  # both accept it, the API does not
    ):
        with pytest.raises(RequestError, match=complaint):
            decode_params(Part, query)


def test_a_message_of_lists_of_messages_is_decoded():
    """Nested lists of messages are decoded, as in a delivery."""
    part = {"topic": "a", "partition": 0, "file": "x", "sha256": "0" * 64}
    at = {"reader": "r", "topic": "a", "partition": 0, "start": 1, "offset": 2}
    options = {"query": "q", "batch": 3, "job": "j", "parts": [part], "cursors": [at]}
    made = decode_json(Deliver, json.dumps(options).encode())
    assert (made.parts[0].file, made.cursors[0].start, made.batch) == ("x", 1, 3)


class Counted(str):
    """A string that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_repeated_name_is_found_without_comparing_every_pair():
    """Duplicate names are found without comparing all pairs.

    With all pairs, an object of 20,000 names blocked the event loop for 17 seconds.
    """
    names = [Counted(number) for number in range(1000)]
    with pytest.raises(ValueError, match="'999' appears twice"):
        given_fields([(name, 1) for name in [*names, Counted(999)]])
    assert Counted.compared < 10 * len(names)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"7", 1),
        (b"[]", 2),
        (b"[1, 2, 3]", 4),
        (b'{"a": 1, "b": [2, {}]}', 6),
        (b'"a, b"', 2),
        (b"[" + b"1," * COUNTED_BYTES + b"1]", COUNTED_BYTES + 2),
    ],
)
def test_values_are_counted_and_never_too_few(body, values):
    """The count of values is an upper bound. It also counts separators inside strings."""
    assert count_values(body, 10**9) == values


def test_counting_ends_soon_after_the_bound():
    """Counting stops soon after the limit is exceeded."""
    assert 10 < count_values(b"," * 10 * COUNTED_BYTES, 10) <= COUNTED_BYTES + 1
