"""JSON and URL parameters to messages: what does not fit is refused by the name of its field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from cordwood.errors import RequestError
from cordwood.protocol.api.decoding import (
    COUNTED_BYTES,
    _without_repeats,
    count_values,
    decode_json,
    decode_json_aside,
    decode_params,
)
from cordwood.protocol.api.messages import ChangeReader, Deliver, ListTopics, RecordReplay


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    count: int = 7


@dataclass(frozen=True, slots=True)
class Order:
    kind: Literal["one", "two"]
    parts: tuple[Part, ...]
    size: int | None = None
    is_dry: bool = False
    words: tuple[str, ...] = ()
    note: dict[str, Any] | None = None


GOOD = {"kind": "one", "parts": [{"name": "a"}, {"name": "b", "count": 0}]}


def test_a_message_is_decoded_with_its_defaults():
    """Null and an empty text are what is not given."""
    said = {**GOOD, "size": None, "is_dry": True, "note": {"any": [1.5, {"thing": None}]}}
    parts = (Part("a"), Part("b", 0))
    note = {"any": [1.5, {"thing": None}]}
    made = Order("one", parts, None, is_dry=True, note=note)
    assert decode_json(Order, json.dumps(said).encode()) == made
    assert decode_json_aside(Order, json.dumps(said).encode()) == made


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "three"}, "kind is 'three'; it takes one or two"),
        ({"kind": None}, "kind is missing; it takes one or two"),
        ({"kind": ["one"]}, "kind is a list; it takes one or two"),
        ({"parts": {}}, "parts is an object; it takes a list"),
        ({"parts": [7]}, r"parts\[0\] must be a JSON object, not '7'"),
        ({"parts": [{"name": "a"}, {}]}, r"parts\[1\].name is missing; it takes a text"),
        ({"parts": [{"name": 3}]}, r"parts\[0\].name is '3'; it takes a text"),
        ({"parts": [{"name": "a", "count": -1}]}, r"parts\[0\].count is '-1'; it takes a whole"),
        ({"parts": [{"name": "a", "count": 2**63}]}, r"parts\[0\].count is '9223372036854775808'"),
        ({"parts": [{"name": "a", "count": 10**400}]}, "more than 30 digits"),
        ({"parts": [{"name": "a", "count": True}]}, r"parts\[0\].count is true; it takes a whole"),
        ({"parts": [{"name": "a", "count": 1.0}]}, r"parts\[0\].count is '1'; it takes a whole"),
        (
            {"parts": [{"name": "a", "coumt": 1}]},
            r"no field parts\[0\].'coumt'; did you mean count",
        ),
        ({"parts": [{"name": "\ud800"}]}, r"parts\[0\].name holds half of a surrogate pair"),
        ({"parts": [{"name": "x" * 70_000}]}, r"parts\[0\].name has 70000 characters"),
        ({"is_dry": "true"}, "is_dry is 'true'; it takes true or false"),
        ({"is_dry": 1}, "is_dry is '1'; it takes true or false"),
        ({"words": ["a", 2]}, r"words\[1\] is '2'; it takes a text"),
        ({"note": []}, "note is a list; it takes an object"),
        ({"note": {"a": {"b": "\udfff"}}}, "note.a.b holds half of a surrogate pair"),
        ({"note": {"a": {"\ud800": 1}}}, "a name in note.a holds half of a surrogate pair"),
        ({"note": {"a": 2**63}}, "note.a is a number of more than 64 bits"),
        ({"\ud800": 1}, "there is no field"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(change, complaint):
    """The path of the field, what it is, and what it takes."""
    with pytest.raises(RequestError, match=complaint):
        decode_json(Order, json.dumps({**GOOD, **change}).encode())
    with pytest.raises(RequestError, match=complaint):
        decode_json_aside(Order, json.dumps({**GOOD, **change}).encode())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"[1]", "the body must be a JSON object, not a list"),
        (b"null", "the body must be a JSON object, not null"),
        (b"7", "the body must be a JSON object"),
        (b'"text"', "the body must be a JSON object"),
        (b"{", "the body is not JSON"),
        (b"\xff\xfe{\0", "the body is not JSON"),
        (b"{}" + b"\0" * 3, "the body is not JSON"),
        (b'{"topic": "\xed\xa0\x80"}', "the body is not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"kind": "one", "kind": "two"}', "'kind' stands twice"),
        (b'{"a": {"x": 1, "x": 1}}', "'x' stands twice"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "the body is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_in_a_sentence(body, complaint):
    """Also what Python's own parser would take, or fail on in its own way."""
    with pytest.raises(RequestError, match=complaint):
        decode_json(Order, body)
    with pytest.raises(RequestError, match=complaint):
        decode_json_aside(Order, body)


def test_a_document_must_be_possible_to_write_again():
    """Depth and infinity are the two things that json.loads takes and json.dumps does not."""
    deep = b'{"id": "r", "record": ' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}"
    with pytest.raises(RequestError, match="record is nested deeper than 32"):
        decode_json(RecordReplay, deep)
    with pytest.raises(RequestError, match=r"record\.a is inf"):
        decode_json(RecordReplay, b'{"id": "r", "record": {"a": 1e999}}')


def test_an_empty_body_is_an_empty_object():
    """A request whose fields are all optional needs none."""
    with pytest.raises(RequestError, match="action is missing; it takes register, remove, advance"):
        decode_json(ChangeReader, b"")


def test_parameters_are_texts_and_digits():
    """Each once; what the message does not have is refused."""
    assert decode_params(ListTopics, "name=a%20b&brief=") == ListTopics("a b")
    assert decode_params(Part, "name=x&count=12") == Part("x", 12)
    for query, complaint in (
        ("name=a&name=b", "twice"),
        ("nane=a", "did you mean name"),
        ("name=%ff", "do not parse"),
        ("name=x&count=1x", "count is '1x'"),
        ("name=x&count=99999999999999999999", "it takes a whole number"),
        ("name=x&count=" + "9" * 5000, "it takes a whole number"),
        ("name=x&count=%C2%B2", "it takes a whole number"),  # a digit to str.isdigit, not to int
        ("name=x&count=%D9%A3", "it takes a whole number"),  # a digit to both, not to the API
    ):
        with pytest.raises(RequestError, match=complaint):
            decode_params(Part, query)


def test_a_message_of_lists_of_messages_is_decoded():
    """As the pipeline sends a delivery."""
    part = {"topic": "a", "partition": 0, "file": "x", "sha256": "0" * 64}
    at = {"reader": "r", "topic": "a", "partition": 0, "start": 1, "offset": 2}
    said = {"query": "q", "batch": 3, "job": "j", "parts": [part], "cursors": [at]}
    made = decode_json(Deliver, json.dumps(said).encode())
    assert (made.parts[0].file, made.cursors[0].start, made.batch) == ("x", 1, 3)


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_repeated_name_is_found_without_comparing_every_pair():
    """An object of twenty thousand names took the event loop seventeen seconds."""
    names = [Counted(number) for number in range(1000)]
    with pytest.raises(ValueError, match="'999' stands twice"):
        _without_repeats([(name, 1) for name in [*names, Counted(999)]])
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
    """Those in texts, too: the count is a bound, not a parser."""
    assert count_values(body, 10**9) == values


def test_counting_ends_soon_after_the_bound():
    """A body that is refused is not read to its end."""
    assert 10 < count_values(b"," * 10 * COUNTED_BYTES, 10) <= COUNTED_BYTES + 1
