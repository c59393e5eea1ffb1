r"""Records as lines: ``seq|broker_ts|routing_key|producer_ts|n|payload``.

In a stream of several partitions the first field is ``partition:seq``.

A line is made for ``awk``: six fields, with the payload byte for byte. Three rules keep it on one
line, and reversible:

- A payload that contains a newline or begins with a backslash is written as ``\e`` and then
  escaped: ``\\`` for a backslash, ``\n`` for a newline. Any other payload is unchanged.
- Key and producer timestamp are always escaped this way, and ``|`` in them becomes ``\p``.
- A null payload or key is ``\N``; an empty one is empty.

A frame may contain newlines, so its payload is raw. A frame with a null payload has five fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from cordwood.errors import ProtocolError
from cordwood.model import Header, Record
from cordwood.protocol.line.framing import Framing

TIMESTAMP_HEADER: Final = "ts"  # the headers that ``batch.lines`` gives an ingress record
NUMBER_HEADER: Final = "n"

_NULL: Final = rb"\N"
_ESCAPED: Final = rb"\e"
_UNESCAPED: Final = {b"\\": b"\\", b"n": b"\n", b"p": b"|"}
_ESCAPE: Final = re.compile(rb"\\(.?)", re.DOTALL)


class Line(NamedTuple):
    """One record as a subscriber sees it. ``n`` is None if its producer sent no number."""

    seq: int
    broker_ts: int
    routing_key: str | None
    producer_ts: str
    n: int | None
    payload: bytes | None
    partition: int = 0


def encode_records(
    records: Iterable[Record], framing: Framing, partition: int | None = None
) -> bytes:
    """Encode records as complete lines or frames, ready to send to a subscriber.

    A ``partition`` is written before each seq, for streams of several partitions.
    """
    label = b"" if partition is None else b"%d:" % partition
    if framing is Framing.TEXT:
        return b"".join(
            b"%b%b|%b\n" % (label, _encode_fields(record), encode_payload(record.value, framing))
            for record in records
        )
    return b"".join(framing.encode(label + _encode_body(record)) for record in records)


def parse_record(body: bytes, framing: Framing, partition: int = 0) -> Line:
    """Parse one line or frame without its delimiter; raise ``ProtocolError`` if it is invalid.

    ``partition`` is what the line is of, unless it names another.
    """
    fields = body.split(b"|", 5)
    if len(fields) < 5 or (len(fields) == 5 and framing is Framing.TEXT):
        raise ProtocolError(f"a record has six fields, but this has {len(fields)}: {body[:80]!r}")
    place, broker_ts, key, producer_ts, n = fields[:5]
    label, colon, seq = place.rpartition(b":")
    try:
        return Line(
            seq=int(seq),
            broker_ts=int(broker_ts),
            routing_key=None if key == _NULL else _text(_unescape(key)),
            producer_ts=_text(_unescape(producer_ts)),
            n=int(n) if n else None,
            payload=parse_payload(fields[5], framing) if len(fields) == 6 else None,
            partition=int(label) if colon else partition,
        )
    except ValueError:
        raise ProtocolError(
            f"partition, seq, broker_ts and n must be numbers: {body[:80]!r}"
        ) from None


def encode_payload(payload: bytes | None, framing: Framing) -> bytes:
    """Encode a payload for a line; in a frame it is raw and cannot be null."""
    if framing is Framing.FRAMES:
        assert payload is not None, "a frame leaves a null payload out"
        return payload
    if payload is None:
        return _NULL
    if b"\n" in payload or payload[:1] == b"\\":
        return _ESCAPED + _escape(payload)
    return payload


def parse_payload(text: bytes, framing: Framing) -> bytes | None:
    """The inverse of ``encode_payload``; raises ``ProtocolError``."""
    if framing is Framing.FRAMES or text[:1] != b"\\":
        return text
    if text == _NULL:
        return None
    if text[:2] != _ESCAPED:
        raise ProtocolError(rf"a payload that begins with a backslash is \N or \e…: {text[:80]!r}")
    return _unescape(text[2:])


def _encode_body(record: Record) -> bytes:
    fields = _encode_fields(record)
    return fields if record.value is None else b"%b|%b" % (fields, record.value)


def _encode_fields(record: Record) -> bytes:
    """Encode everything before the separator of the payload."""
    key = _NULL if record.key is None else _escape_field(record.key)
    timestamp, number = _stamps(record.headers)
    return b"%d|%d|%b|%b|%b" % (record.offset + 1, record.timestamp_ms, key, timestamp, number)


def _stamps(headers: tuple[Header, ...]) -> tuple[bytes, bytes]:
    """Return producer timestamp and n as fields; empty if the record did not arrive as a line."""
    timestamp = number = b""
    for key, value in headers:
        if key == TIMESTAMP_HEADER and value:
            timestamp = _escape_field(value)
        elif key == NUMBER_HEADER and value and value.isdigit() and len(value) < 20:
            number = value
    return timestamp, number


def _escape_field(field: bytes) -> bytes:
    return _escape(field).replace(b"|", rb"\p")


def _escape(raw: bytes) -> bytes:
    return raw.replace(b"\\", rb"\\").replace(b"\n", rb"\n")


def _unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(_unescape_one, text) if b"\\" in text else text


def _unescape_one(match: re.Match[bytes]) -> bytes:
    if match[1] not in _UNESCAPED:
        raise ProtocolError(f"there is no escape {match[0]!r}")
    return _UNESCAPED[match[1]]


def _text(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes become surrogates, so that encoding restores them."""
    return raw.decode("utf-8", "surrogateescape")
