"""Decodes JSON or URL parameters into a typed message, validated once at the edge.

A message is a frozen dataclass, and its annotations are its schema: ``str``, ``int`` (0 to 2^63-1),
``bool``, a ``Literal`` of words, another message, a ``tuple`` of any of these, ``X | None``, or
``dict[str, Any]`` for a document that is stored without being interpreted. A value that does not
fit raises a ``RequestError`` that names the field by its path, such as ``parts[2].partition``, and
says what the field takes. Handlers receive messages, never a dict.

Values are counted before a body is parsed (``count_values``): the memory and time of parsing depend
on the number of values, and a megabyte may hold half a million of them.
"""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from json import scanner
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import parse_qsl

from cordwood.errors import RequestError
from cordwood.model import OFFSET_MAX

DEPTH_MAX: Final = 32  # of a stored document; json.dumps must be able to write it again
TEXT_CHARS_MAX: Final = 65_536
COUNTED_BYTES: Final = 65_536  # per step: a body with far too many values is not counted to its end

M = TypeVar("M")


def decode_json(kind: type[M], body: bytes) -> M:
    """Decode the body of a request; an empty body is an empty object."""
    return _message(kind, parse_json(body or b"{}"), "the body", "")


def decode_json_aside(kind: type[M], body: bytes) -> M:
    """Like ``decode_json``, for use on a thread: releases the GIL every few milliseconds.

    The C parser holds the GIL until it is done, so a long body would block the event loop from any
    thread. Python's own parser is ten times slower but does not.
    """
    return _message(kind, _parse(body or b"{}", _python_decoder()), "the body", "")


def count_values(body: bytes, most: int) -> int:
    """Return an upper bound of the number of values in a JSON text; stop soon after ``most``.

    Separators inside strings count too, so the number may be too large but never too small.
    """
    found = 1
    for start in range(0, len(body), COUNTED_BYTES):
        found += sum(body.count(mark, start, start + COUNTED_BYTES) for mark in (b",", b"[", b"{"))
        if found > most:
            break
    return found


def decode_params(kind: type[M], query: str) -> M:
    """Decode the part of a URL after ``?``; numbers must be written in digits."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise RequestError(f"the URL's parameters do not parse: {error}") from None
    numbers = {name for name, field in _schema(cast(Any, kind)).items() if field.kind is int}
    values = {name: _digits(text) if name in numbers else text for name, text in pairs}
    if len(values) != len(pairs):
        raise RequestError("the URL gives a parameter twice; give each once")
    return _message(kind, values, "the URL", "")


def parse_json(body: bytes) -> Any:
    """Parse a JSON value; duplicate names and NaN, which ``json`` accepts, are refused too."""
    return _parse(body, _decoder())


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)


def _python_decoder() -> json.JSONDecoder:
    """The same decoder in pure Python, which ``json`` uses where its C module is missing."""
    decoder = _decoder()
    decoder.scan_once = scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder


def _parse(body: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(body.decode())
    except RecursionError:
        raise RequestError("the body is nested too deeply to be read") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} stands twice in one object")
        found[name] = value
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _digits(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else text


# --- a message -----------------------------------------------------------------------------


class _Field(NamedTuple):
    kind: Any
    is_required: bool


@cache
def _schema(kind: type[Any]) -> Mapping[str, _Field]:
    assert is_dataclass(kind), f"{kind} is no message"
    hints = get_type_hints(kind)
    return {
        each.name: _Field(_bare(hints[each.name]), each.default is MISSING) for each in fields(kind)
    }


def _bare(kind: Any) -> Any:
    """Turn ``X | None`` into X; the default says what absence means."""
    if get_origin(kind) in {Union, types.UnionType}:
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    return kind


def _message(kind: type[M], value: object, what: str, prefix: str) -> M:
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object, not {_named(value)}")
    schema = _schema(cast(Any, kind))
    _refuse_unknown(value, schema, prefix)
    found = {}
    for name, field in schema.items():
        given = value.get(name)
        if given is not None and given != "":
            found[name] = _value(field.kind, given, prefix + name)
        elif field.is_required:
            raise RequestError(f"{prefix}{name} is missing; it takes {_wanted(field.kind)}")
    return kind(**found)


def _refuse_unknown(names: Iterable[str], schema: Mapping[str, _Field], prefix: str) -> None:
    for name in names:
        if name not in schema:
            close = difflib.get_close_matches(name[:80], schema, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(schema) or 'none'}"
            )
            raise RequestError(f"there is no field {prefix}{_shown(name)}; {hint}")


def _value(kind: Any, value: object, path: str) -> Any:
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _message(kind, value, path, f"{path}.")  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list):
        (of, _) = get_args(kind)
        return tuple(_value(of, each, f"{path}[{at}]") for at, each in enumerate(value))
    if origin is Literal and value in get_args(kind):
        return value
    if origin is dict and isinstance(value, dict):
        return _document(value, path)
    if kind is str and isinstance(value, str):
        return _text(value, path)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and _is_int(value):
        return value
    raise RequestError(f"{path} is {_named(value)}; it takes {_wanted(kind)}")


def _is_int(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value <= OFFSET_MAX  # type: ignore[operator]


def _text(value: str, path: str) -> str:
    if len(value) > TEXT_CHARS_MAX:
        raise RequestError(
            f"{path} has {len(value)} characters; at most {TEXT_CHARS_MAX} are taken"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{path} holds half of a surrogate pair, which is no text") from None
    return value


def _document(value: Any, path: str, depth: int = 0) -> Any:
    """Check JSON that is stored as it is: it must be possible to serialise it again."""
    if depth > DEPTH_MAX:
        raise RequestError(f"{path.partition('.')[0]} is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, dict):
        for name, each in value.items():
            _document(each, f"{path}.{_text(name, f'a name in {path}')[:80]}", depth + 1)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            _document(each, f"{path}[{at}]", depth + 1)
    elif isinstance(value, str):
        _text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{path} is {value}, which JSON cannot say")
    elif isinstance(value, int) and abs(value) > OFFSET_MAX:
        raise RequestError(f"{path} is a number of more than 64 bits")
    return value


# --- error texts ---------------------------------------------------------------------------


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        *words, last = get_args(kind)
        return f"{', '.join(words)} or {last}" if words else str(last)
    if get_origin(kind) is tuple:
        return "a list"
    if is_dataclass(kind) or get_origin(kind) is dict:
        return "an object"
    return {str: "a text", bool: "true or false", int: "a whole number from 0 to 2^63-1"}[kind]


def _named(value: object) -> str:
    """Describe a value of the wrong type for an error message: short, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, int | float):
        return _shown(f"{value:.17g}" if isinstance(value, float) else _digits_of(value))
    return "an object" if isinstance(value, dict) else "a list"


def _digits_of(value: int) -> str:
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"


def _shown(text: str) -> str:
    return ascii(text[:60])
