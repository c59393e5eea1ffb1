"""Reads the annotations of a message class into plain fields, once per class.

The codec and the generated documentation use these fields; nothing here touches bytes.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from cordwood.protocol.kafka.primitives import NullSince, Since, Tag, Until, WireType

NO_DEFAULT: Final = object()
LAST_VERSION: Final = 2**15 - 1

MessageType = type[tuple[Any, ...]]
"""A message or struct class: a ``NamedTuple``."""


class Field(NamedTuple):
    """One field of a message: its type and the versions that carry it."""

    name: str
    element: WireType | MessageType  # for an array, the type of its items
    is_array: bool
    is_optional: bool  # its Python type includes None
    first_version: int
    last_version: int
    null_version: int  # the first version in which null may be written
    tag: int | None
    default: Any

    def is_in(self, version: int) -> bool:
        """Whether this version carries the field."""
        return self.first_version <= version <= self.last_version

    def is_nullable(self, version: int) -> bool:
        """Whether null may be written in this version."""
        return self.is_optional and version >= self.null_version


@cache
def fields_of(message_type: MessageType) -> tuple[Field, ...]:
    """Return the fields of a message class, in wire order."""
    hints = get_type_hints(message_type, include_extras=True)
    defaults: dict[str, Any] = message_type._field_defaults  # type: ignore[attr-defined]
    fields = tuple(
        _parse_field(name, hint, defaults.get(name, NO_DEFAULT)) for name, hint in hints.items()
    )
    for field in fields:
        always = field.first_version == 0 and field.last_version == LAST_VERSION
        assert (always and field.tag is None) or field.default is not NO_DEFAULT, field
    return fields


def _parse_field(name: str, hint: Any, default: Any) -> Field:
    marks: dict[type, Any] = {}
    hint = _unwrap(hint, marks)
    is_array = get_origin(hint) is Sequence
    inner: dict[type, Any] = {}
    element = _unwrap(get_args(hint)[0], inner) if is_array else hint
    kind = (inner if is_array else marks).get(WireType)
    assert kind is not None or issubclass(element, tuple), name
    return Field(
        name=name,
        element=kind or element,
        is_array=is_array,
        is_optional=type(None) in marks,
        first_version=marks.get(Since, Since(0)).version,
        last_version=marks.get(Until, Until(LAST_VERSION)).version,
        null_version=marks.get(NullSince, NullSince(0)).version,
        tag=marks[Tag].number if Tag in marks else None,
        default=default,
    )


def _unwrap(hint: Any, marks: dict[type, Any]) -> Any:
    """Strip ``Annotated`` and ``| None`` from a hint and collect what they declare in ``marks``."""
    while True:
        if get_origin(hint) is Annotated:
            marks |= {type(mark): mark for mark in hint.__metadata__}
            hint = hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
            marks[type(None)] = None
            (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
        else:
            return hint
