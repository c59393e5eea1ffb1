"""Rows of the settings tables: how a setting is declared, parsed and written as text.

A row has a default, a sentence of documentation and the allowed values; the annotation of its field
gives the type. A parsed value of ``-1`` means no limit and becomes ``KEEP_ALL``, so policies need
no special case. The tables are ``topic.TopicConfig`` and ``config.BrokerConfig``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from typing import Any, Final, NamedTuple, cast

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KEEP_ALL: Final = 2**63 - 1  # the parsed form of -1: larger than any size or age

LONG_MAX: Final = str(KEEP_ALL)  # how Kafka writes no limit where -1 is not allowed

Value = int | float | bool | str | frozenset[str]
Check = Callable[[Any], str]


class Row(NamedTuple):
    """The default, documentation and bounds of a setting."""

    default: Value
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    limit: bool  # whether -1 means no limit
    no_limit: str  # how no limit is written
    check: Check | None  # returns why a value is refused; empty if it is not
    is_dynamic: bool = False  # of a broker: whether it can change while the broker runs


def setting(
    default: Value,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    limit: bool = False,
    no_limit: str = "-1",
    check: Check | None = None,
    dynamic: bool = False,
) -> Any:
    """Declare one row; the field's annotation gives its type."""
    row = Row(default, doc, low, high, tuple(choices), limit, no_limit, check, dynamic)
    return field(default=default, metadata={"row": row})


def limit(
    default: int, doc: str, *, low: int = 0, no_limit: str = "-1", dynamic: bool = False
) -> Any:
    """Declare a row whose value -1 means no limit."""
    return setting(default, doc, low=low, limit=True, no_limit=no_limit, dynamic=dynamic)


def parse_value(kind: str, row: Row, text: object) -> Value:
    """Parse a setting from a file, flag, variable or Kafka request; raises ``ValueError``."""
    value = _PARSERS[kind](text)
    if row.limit and value == -1:
        return KEEP_ALL
    parts = value if isinstance(value, frozenset) else {value}
    if row.choices and not parts <= set(row.choices):
        raise ValueError(f"{text!r} is not one of {', '.join(row.choices)}")
    if row.low is not None and cast(float, value) < row.low:
        raise ValueError(f"{text} is below {row.low}")
    if row.high is not None and cast(float, value) > row.high:
        raise ValueError(f"{text} is above {row.high}")
    if row.check is not None and (refusal := row.check(value)):
        raise ValueError(refusal)
    return value


def format_value(row: Row, value: Value) -> str:
    """The setting as Kafka and TOML users write it; the inverse of ``parse_value``."""
    if row.limit and value == KEEP_ALL:
        return row.no_limit
    if isinstance(value, frozenset):
        return ",".join(choice for choice in row.choices or sorted(value) if choice in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _parse_int(text: object) -> int:
    is_number = isinstance(text, int | str) and not isinstance(text, bool)
    try:
        number = int(cast(str, text) if is_number else "")
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if not -KEEP_ALL <= number <= KEEP_ALL:  # int64 on the wire and in kernels
        raise ValueError(f"{text} does not fit in 64 bits")
    return number


def _parse_float(text: object) -> float:
    with suppress(TypeError, ValueError):
        number = float(cast(str, text))
        if not math.isnan(number):  # NaN would pass every bounds check
            return number
    raise ValueError(f"{text!r} is not a number")


def _parse_bool(text: object) -> bool:
    word = str(text).lower()
    if word not in {"true", "false"}:
        raise ValueError(f"{text!r} is not true or false")
    return word == "true"


def _parse_set(text: object) -> frozenset[str]:
    words = text if isinstance(text, list | frozenset) else str(text).split(",")
    return frozenset(str(word).strip() for word in words if str(word).strip())


_PARSERS: dict[str, Callable[[object], Value]] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "str": str,
    "frozenset[str]": _parse_set,
}
