"""The elements of a Kafka message: wire types, version markers and varints.

A message is a ``NamedTuple`` whose annotations are the wire format: the Python type, and with it
(``Annotated``) the wire type and the versions that carry the field. This module defines these
markers and the few byte operations that do not fit in a ``struct`` format. It knows no message and
no API.
"""

from __future__ import annotations

import struct
from enum import Enum
from struct import Struct
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from cordwood.errors import TooManyElements

Buffer = bytes | bytearray | memoryview
"""What record bytes may lie in; a decoded message always holds a ``memoryview``."""

NO_ID: Final = UUID(int=0)
"""The topic id that names no topic."""


class WireType(Enum):
    """A wire type. Those with a fixed width have their ``struct`` code as value."""

    BOOL = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UINT16 = "H"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"

    @property
    def is_fixed(self) -> bool:
        """Whether every value takes the same number of bytes."""
        return self not in (WireType.STRING, WireType.BYTES, WireType.RECORDS)


Bool = Annotated[bool, WireType.BOOL]
Int8 = Annotated[int, WireType.INT8]
Int16 = Annotated[int, WireType.INT16]
Int32 = Annotated[int, WireType.INT32]
Int64 = Annotated[int, WireType.INT64]
UInt16 = Annotated[int, WireType.UINT16]
Uuid = Annotated[UUID, WireType.UUID]
Str = Annotated[str, WireType.STRING]
Bytes = Annotated[bytes, WireType.BYTES]
Records = Annotated[Buffer, WireType.RECORDS]


class Since(NamedTuple):
    """The first version that carries the field; before it the field has its default."""

    version: int


class Until(NamedTuple):
    """The last version that carries the field."""

    version: int


class NullSince(NamedTuple):
    """The first version in which an optional field may be null; without it, every version."""

    version: int


class Tag(NamedTuple):
    """The field is in the tag section under this number, unless it has its default."""

    number: int


# --- varints and tag sections ---------------------------------------------------------------

VARINT_BYTES_MAX: Final = 5
TAGS_MAX: Final = 64
"""Tagged fields in one section; Kafka has defined a handful, and each costs a step to pass over."""
STRING_BYTES_MAX: Final = 2**15 - 1
"""Of any string, also where a varint could state more: Kafka's own limit."""
SMALL_VARINTS: Final = tuple(bytes((n,)) for n in range(128))


def parse_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint; return it and the position after it."""
    value = data[position]
    position += 1
    if value < 128:
        return value, position
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
    raise ValueError(f"a varint longer than {VARINT_BYTES_MAX} bytes ends at byte {position}")


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint; flexible versions write lengths this way, plus one."""
    assert value >= 0, value
    if value < 128:
        return SMALL_VARINTS[value]
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(data: memoryview, position: int) -> int:
    """Return the position after a tag section of which we know no field."""
    count, position = parse_uvarint(data, position)
    if count > TAGS_MAX:
        refuse_length(count, position)
    for _ in range(count):
        _, position = parse_uvarint(data, position)
        size, position = parse_uvarint(data, position)
        position += size
    return position


# --- arrays of numbers ----------------------------------------------------------------------

_ARRAYS: Final[dict[tuple[str, int], Struct]] = {}
_ARRAYS_KEPT_MAX: Final = 256


def number_array(code: str, count: int) -> Struct:
    """Return the ``struct`` of that many numbers; up to ``_ARRAYS_KEPT_MAX`` are cached."""
    numbers = _ARRAYS.get((code, count))
    if numbers is None:
        numbers = Struct(f">{count}{code}")
        if len(_ARRAYS) < _ARRAYS_KEPT_MAX:
            _ARRAYS[code, count] = numbers
    return numbers


def refuse_length(length: int, position: int) -> None:
    """Raise for a length that is negative without being a legal null, or larger than the rest."""
    raise ValueError(f"the length {length} before byte {position} does not fit the message")


def refuse_crowd(length: int, position: int) -> None:
    """Raise for an array that takes a message over its limit of elements."""
    raise TooManyElements(
        f"the array of {length} elements before byte {position} exceeds request.elements.max; "
        "request less at once, or raise the setting"
    )


DECODE_FAULTS: Final = (ValueError, IndexError, struct.error)
"""What reading malformed bytes raises here; ``codec`` and ``frames`` turn it into BadMessage."""
