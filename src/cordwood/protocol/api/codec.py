"""Decodes JSON or URL parameters into messages, and encodes messages; validates once at the edge.

msgspec checks a value against the declared type. What it does not check is checked here: a name
that stands twice in an object, NaN, half of a surrogate pair. Null and an empty text mean that a
field is not given. A value that does not fit raises a ``RequestError`` that names the field by its
path, such as ``$.parts[2].partition``, and says what is expected there.

Values are counted before a body is parsed (``count_values``): the memory and time of parsing depend
on the number of values, and a megabyte may hold half a million of them.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from json import scanner
from typing import Any, Final, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from cordwood.errors import RequestError
from cordwood.protocol.api.call import API_PREFIX, Call

COUNTED_BYTES: Final = 65_536  # per step: a body with far too many values is not counted to its end
_COMPLAINT: Final = re.compile(r"(.*?)(?: - at `(?:key in )?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)

M = TypeVar("M")


def decode_json(kind: type[M], body: bytes) -> M:
    """Decode the body of a request; an empty body is an empty object."""
    return _converted(kind, _parse(body, _decoder()))


def decode_json_on_thread(kind: type[M], body: bytes) -> M:
    """Like ``decode_json``, for use on a thread: releases the GIL while it parses.

    The C parser holds the GIL until it is done, so a long body would block the event loop from any
    thread. Python's own parser is ten times slower but does not. The conversion to the message
    afterwards holds the GIL for about 50 ms per 100,000 parts of a delivery.
    """
    decoder = _decoder()
    decoder.scan_once = scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return _converted(kind, _parse(body, decoder))


def decode_params(kind: type[M], query: str) -> M:
    """Decode the part of a URL after ``?``; numbers must be written in digits."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise RequestError(f"the URL's parameters cannot be parsed: {error}") from None
    if len(dict(pairs)) != len(pairs):
        raise RequestError("the URL has a parameter twice; give each once")
    numbers = {
        name
        for name, schema in _schemas(cast("Any", kind)).items()
        if schema.get("type") == "integer"
    }
    values = {name: _digits(text) if name in numbers else text for name, text in pairs if text}
    return _converted(kind, values)


def encode_json(message: object) -> bytes:
    """Encode a message as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(message), indent=1) + b"\n"


def decode_reply(kind: type[M], body: bytes) -> M:
    """Decode a reply of the broker; raises ``ValueError`` if it is not a ``kind``."""
    return msgspec.json.decode(body or b"{}", type=kind)


def encode_call(call: Call[Any]) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return the method, path, URL parameters and JSON body of a request."""
    method, path = call.route
    if method == "POST":
        return method, API_PREFIX + path, {}, msgspec.json.encode(call)
    given = {name: getattr(call, name) for name in call.__struct_fields__}
    params = {name: str(value) for name, value in given.items() if value is not None}
    return method, API_PREFIX + path, params, None


def count_values(body: bytes, most: int) -> int:
    """Return an upper bound of the number of values in a JSON text; stop soon after ``most``.

    Separators inside strings count too, so the number may be too large but never too small.
    """
    count = 1
    for start in range(0, len(body), COUNTED_BYTES):
        count += sum(body.count(mark, start, start + COUNTED_BYTES) for mark in (b",", b"[", b"{"))
        if count > most:
            break
    return count


# --- parsing -------------------------------------------------------------------------------


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=given_fields, parse_constant=_refuse_constant)


def _parse(body: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode((body or b"{}").decode())
    except RecursionError:
        raise RequestError("the body is nested too deeply to be read") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def given_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object that are given; raises ``ValueError`` for a repeated name."""
    names: set[str] = set()
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{name[:80]!a} appears twice in one object")
        names.add(name)
        _check_text(name, name)
        for each in value if isinstance(value, list) else (value,):
            _check_text(each, name)
    return {name: value for name, value in pairs if value is not None and value != ""}


def _check_text(value: object, name: str) -> None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name[:80]!a} holds half of a surrogate pair") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _digits(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else text


# --- validation ----------------------------------------------------------------------------


def _converted(kind: type[M], value: object) -> M:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(_complaint(kind, str(error))) from None
    except UnicodeEncodeError:  # outside an object, where ``given_fields`` does not look
        raise RequestError("the body holds half of a surrogate pair") from None


def _complaint(kind: Any, text: str) -> str:
    """Return msgspec's error as ``path: what is expected``."""
    match = _COMPLAINT.fullmatch(text)
    assert match
    what, path = match[1], match[2] or "$"
    if field := _FIELD.fullmatch(what):
        name = field[2][:60]
        if field[1] == "missing required":
            return f"{path}.{name}: missing; expected {_expected(kind, name)}"
        return f"{path}.{ascii(name)[1:-1]}: unknown field; {_suggestion(kind, name)}"
    name = path.rpartition(".")[2]
    if what.startswith("Invalid"):
        return f"{path}: expected {_expected(kind, name)}, got another value"
    return f"{path}: {what[:1].lower()}{what[1:200].replace('`', '')}"


def _suggestion(kind: Any, name: str) -> str:
    names = _schemas(kind)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names) or 'none'}"


def _expected(kind: Any, name: str) -> str:
    schema = _schemas(kind).get(name, {})
    *words, last = schema.get("enum") or [schema.get("type", "an object")]
    return f"{', '.join(words)} or {last}" if words else str(last)


@cache
def _schemas(kind: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every field of a message and the messages in it, by name."""
    _, components = msgspec.json.schema_components([kind])
    schemas: dict[str, dict[str, Any]] = {}
    for component in components.values():
        for name, schema in component.get("properties", {}).items():
            known = schemas.setdefault(name, {**schema, "enum": []})
            known["enum"] = [*known["enum"], *schema.get("enum", ())]
    return schemas
