r"""The percent format for records, as in ``rpk`` and ``kcat``.

``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%v`` value (also ``%s``), ``%h``
headers, ``%T`` timestamp in ms, ``%d`` timestamp as ISO 8601, ``%K`` and ``%V`` (or ``%S``) sizes,
``%%`` a percent sign. ``%k{hex}`` and ``%v{hex}`` or ``{base64}`` change how bytes are shown.
``\n``, ``\t``, ``\\`` and ``\xHH`` are escapes. A null is empty for ``%k`` and ``%v``; its size
is -1.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable

import typer

from cordwood.cli.output.row_printer import format_time
from cordwood.model import Record, TopicPartition

Part = Callable[[TopicPartition, Record], bytes]

_TOKEN = re.compile(r"%(?:%|([a-zA-Z])(?:\{(\w+)\})?)|\\(n|t|r|0|\\|x[0-9a-fA-F]{2})|[^%\\]+")
_ESCAPE = re.compile(rb"\\(n|t|r|0|\\|x[0-9a-fA-F]{2})")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def compile_format(text: str) -> Callable[[TopicPartition, Record], bytes]:
    """Compile a format to a function; raise ``BadParameter`` that names what is wrong in it."""
    parts: list[Part] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise typer.BadParameter(
                f"{text[position : position + 2]!r} is not a known escape in the format"
            )
        parts.append(_part(token))
        position = token.end()
    return lambda tp, record: b"".join(part(tp, record) for part in parts)


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a separator; ``\t`` and the other escapes work as in a format."""
    return _ESCAPE.sub(lambda found: _unescape(found[1].decode()), os.fsencode(text))


def _part(token: re.Match[str]) -> Part:
    whole, letter, modifier, escape = token[0], token[1], token[2], token[3]
    if whole == "%%":
        return lambda _tp, _record: b"%"
    if escape:
        raw = _unescape(escape)
        return lambda _tp, _record: raw
    if letter is None:
        literal = whole.encode()
        return lambda _tp, _record: literal
    if letter not in _LETTERS:
        raise typer.BadParameter(
            f"%{letter} is not a known field; use {' '.join(f'%{x}' for x in _LETTERS)}"
        )
    shape = _shape(modifier)
    show = _LETTERS[letter]
    return lambda tp, record: shape(show(tp, record))


def _unescape(escape: str) -> bytes:
    return bytes.fromhex(escape[1:]) if escape.startswith("x") else _ESCAPES[escape]


def _shape(modifier: str | None) -> Callable[[bytes], bytes]:
    shapes: dict[str | None, Callable[[bytes], bytes]] = {
        None: lambda raw: raw,
        "hex": lambda raw: raw.hex().encode(),
        "base64": base64.b64encode,
    }
    if modifier not in shapes:
        raise typer.BadParameter(
            f"{{{modifier}}} is not a known modifier; use {{hex}} or {{base64}}"
        )
    return shapes[modifier]


def _size(value: bytes | None) -> bytes:
    return b"-1" if value is None else b"%d" % len(value)


def _headers(record: Record) -> bytes:
    return b",".join(
        header.key.encode() + b"=" + (header.value or b"") for header in record.headers
    )


_LETTERS: dict[str, Part] = {
    "t": lambda tp, _: tp.topic.encode(),
    "p": lambda tp, _: b"%d" % tp.partition,
    "o": lambda _, record: b"%d" % record.offset,
    "k": lambda _, record: record.key or b"",
    "v": lambda _, record: record.value or b"",
    "s": lambda _, record: record.value or b"",
    "h": lambda _, record: _headers(record),
    "T": lambda _, record: b"%d" % record.timestamp_ms,
    "d": lambda _, record: (format_time(record.timestamp_ms) or "").encode(),
    "K": lambda _, record: _size(record.key),
    "V": lambda _, record: _size(record.value),
    "S": lambda _, record: _size(record.value),
}
