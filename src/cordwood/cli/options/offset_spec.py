"""Offset options: ``start``, ``end``, ``N``, ``-N``, ``@time``, ``@t1:t2``.

A time is ``-1h`` (ago; ms, s, m, h, d), milliseconds since the epoch, or ISO 8601 such as
``2026-11-15T10:00Z``. Parsing does no I/O; ``find_place`` and ``clamp_place`` ask the broker.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import typer

from cordwood.model import OFFSET_MAX, TopicPartition
from cordwood.settings.units import DURATIONS_MS

if TYPE_CHECKING:
    from cordwood.client.kafka import KafkaClient

_AGO = re.compile(r"-(\d+)(ms|s|m|h|d)")


class Anchor(Enum):
    """What an offset is relative to."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    FROM_END = "from end"  # this many records before the end
    TIME = "time"


class OffsetSpec(NamedTuple):
    """One parsed option; ``value`` is an offset, a count or a time in ms."""

    anchor: Anchor
    value: int = 0


def parse_span(text: str) -> tuple[OffsetSpec, OffsetSpec | None]:
    """Parse a start and, for ``@t1:t2``, an end."""
    if text.startswith("@") and (cut := _span_cut(text[1:])) is not None:
        first, last = text[1:][:cut], text[1:][cut + 1 :]
        return OffsetSpec(Anchor.TIME, parse_time(first)), OffsetSpec(Anchor.TIME, parse_time(last))
    return parse_place(text), None


def parse_place(text: str) -> OffsetSpec:
    """Parse one offset option; raise ``BadParameter`` if it is invalid."""
    if text in {"start", "beginning", "earliest"}:
        return OffsetSpec(Anchor.START)
    if text in {"end", "latest"}:
        return OffsetSpec(Anchor.END)
    if text.startswith("@"):
        return OffsetSpec(Anchor.TIME, parse_time(text[1:]))
    if text.isdecimal():
        return OffsetSpec(Anchor.OFFSET, _parse_int64(text))
    if text.startswith("-") and text[1:].isdecimal():
        return OffsetSpec(Anchor.FROM_END, _parse_int64(text[1:]))
    raise typer.BadParameter(f"{text!r} is not an offset; use start, end, N, -N, @time or @t1:t2")


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Parse a time to milliseconds since the epoch; raise ``BadParameter`` if it is invalid."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if ago := _AGO.fullmatch(text):
        return max(0, now_ms - _parse_int64(ago[1]) * DURATIONS_MS[ago[2]])
    if text.isdecimal():
        return _parse_int64(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; use -1h, milliseconds, or 2026-11-15T10:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return int(moment.timestamp() * 1000)


def _parse_int64(text: str) -> int:
    """Parse digits; offsets and times have at most 64 bits on the wire."""
    if len(text) > len(str(OFFSET_MAX)) or int(text) > OFFSET_MAX:
        raise typer.BadParameter(f"{text[:40]} is too large; the largest is {OFFSET_MAX}")
    return int(text)


def clamp_place(client: KafkaClient, tp: TopicPartition, offset: int) -> int:
    """Return the nearest offset where a reader can start on the partition now."""
    from cordwood.client.kafka import EARLIEST, LATEST

    start, end = client.offset(tp, EARLIEST) or 0, client.offset(tp, LATEST) or 0
    return max(start, min(offset, end))


def find_place(client: KafkaClient, tp: TopicPartition, place: OffsetSpec) -> int:
    """Return the offset that a parsed option stands for on a partition now."""
    from cordwood.client.kafka import EARLIEST, LATEST

    if place.anchor is Anchor.OFFSET:
        return place.value
    if place.anchor is Anchor.START:
        return client.offset(tp, EARLIEST) or 0
    end = client.offset(tp, LATEST) or 0
    if place.anchor is Anchor.FROM_END:
        return max(client.offset(tp, EARLIEST) or 0, end - place.value)
    if place.anchor is Anchor.TIME:
        found = client.offset(tp, place.value)
        return end if found is None else found
    return end


def _span_cut(text: str) -> int | None:
    """Find the separator of ``t1:t2``; times may contain colons, so both parts must be times."""
    for cut in (i for i, letter in enumerate(text) if letter == ":"):
        try:
            parse_time(text[:cut])
            parse_time(text[cut + 1 :])
        except typer.BadParameter:
            continue
        return cut
    return None
