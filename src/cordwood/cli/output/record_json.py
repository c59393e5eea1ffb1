"""Records as JSON lines: what ``consume -J`` prints is what ``produce -J`` reads.

Key, value and header values are text if the bytes are UTF-8; other bytes are base64 in a field
whose name ends with ``_base64``. A null stays null.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from typing import Any, NamedTuple

from cordwood.model import Header, Record, TopicPartition

INT64_MAX = 2**63 - 1
_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_KNOWN = (*_FIELDS, "key_base64", "value_base64")


class BadLine(ValueError):
    """A line that is not a record; the message says what is wrong with it."""


class ParsedLine(NamedTuple):
    """A record to append; a partition or timestamp that the line does not have is None."""

    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def encode_json(tp: TopicPartition, record: Record) -> bytes:
    """Encode a record as one line; every line has the same fields."""
    shown: dict[str, Any] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    _add_bytes(shown, "key", record.key)
    _add_bytes(shown, "value", record.value)
    shown["headers"] = [_header_as_json(header) for header in record.headers]
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def parse_json(line: bytes) -> ParsedLine:
    """Parse one line; topic and offset may be there and are ignored. Raises ``BadLine``."""
    fields = _parse_object(line)
    for name in fields:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; the fields are {', '.join(_KNOWN)}"
            raise BadLine(f"{name!r} is not a field of a record{hint}")
    if "value" not in fields and "value_base64" not in fields:
        raise BadLine('it has no value; "value": null is a tombstone')
    return ParsedLine(
        partition=_parse_integer(fields, "partition", 0),
        timestamp_ms=_parse_integer(fields, "timestamp", -1),
        key=_parse_bytes(fields, "key"),
        value=_parse_bytes(fields, "value"),
        headers=_parse_headers(fields.get("headers")),
    )


def _header_as_json(header: Header) -> dict[str, Any]:
    shown: dict[str, Any] = {"key": header.key}
    _add_bytes(shown, "value", header.value)
    return shown


def _add_bytes(shown: dict[str, Any], name: str, value: bytes | None) -> None:
    if value is None:
        shown[name] = None
        return
    try:
        shown[name] = value.decode()
    except UnicodeDecodeError:
        shown[f"{name}_base64"] = base64.b64encode(value).decode()


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        shown = line[:60].decode(errors="backslashreplace")
        raise BadLine(f"it is not JSON: {shown}") from None
    if not isinstance(parsed, dict):
        raise BadLine('it is not a JSON object such as {"key": "k", "value": "v"}')
    return parsed


def _parse_integer(fields: dict[str, Any], name: str, low: int) -> int | None:
    number = fields.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= INT64_MAX:
        raise BadLine(f"{name} is {json.dumps(number)[:60]}, not a whole number of at least {low}")
    return number


def _parse_bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        if name in fields:
            raise BadLine(f"it has both {name} and {name}_base64")
        return _parse_base64(fields[f"{name}_base64"], f"{name}_base64")
    text = fields.get(name)
    if text is not None and not isinstance(text, str):
        raise BadLine(f'{name} is not text; quote it, as in "{name}": "{{\\"a\\": 1}}"')
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name} has half of a surrogate pair, which is not UTF-8") from None


def _parse_base64(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadLine(f"{name} is not base64") from None


def _parse_headers(headers: Any) -> tuple[Header, ...]:
    if headers is None:
        return ()
    if not isinstance(headers, list) or not all(isinstance(each, dict) for each in headers):
        raise BadLine('headers is not a list such as [{"key": "k", "value": "v"}]')
    return tuple(_parse_header(each) for each in headers)


def _parse_header(header: dict[str, Any]) -> Header:
    key = header.get("key")
    unknown = header.keys() - {"key", "value", "value_base64"}
    if not isinstance(key, str) or unknown:
        raise BadLine("a header has a key that is text and a value or value_base64, nothing else")
    return Header(key, _parse_bytes(header, "value"))
