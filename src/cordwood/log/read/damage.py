"""Damage inside a segment: find the damaged bytes and offsets, and where reading can continue.

A reader that meets a bad batch knows only where it stopped. The damage may begin earlier: a wrong
length makes the reader skip sound batches, and a wrong base offset shows only in the next batch. So
the search starts at a batch known to be sound, checks every checksum from there, and stops at the
first batch that cannot be right. The damage ends where the next sound batch begins. It is searched

1. where the bad batch claims to end: the usual case, a flipped byte in its body;
2. at the following index entries, so that a large hole needs no search of its bytes;
3. byte by byte before that entry, for at most ``SEARCH_BYTES``.

Reads through a function, as ``format.scan`` does. Never changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cordwood.batch.header import HEADER_BYTES, BatchHeader
from cordwood.config import MIB
from cordwood.errors import CorruptionError, DamagedRecords
from cordwood.log.format.index import OffsetEntry
from cordwood.log.format.scan import Read, check_batch, find_batch

if TYPE_CHECKING:
    from cordwood.log.read.segment import Segment

SEARCH_BYTES: Final = 4 * MIB


class Damage(NamedTuple):
    """Bytes that are no longer valid batches; ranges of offsets and positions are half-open."""

    position: int
    end_position: int
    start_offset: int
    end_offset: int
    problem: str


class Area(NamedTuple):
    """The part of a segment to search; batches from ``end_position`` on are ignored."""

    read: Read
    entries: Sequence[OffsetEntry]  # the segment's index, in order; wrong entries are skipped
    base_offset: int
    end_position: int
    end_offset: int
    known: Sequence[Damage] = ()  # found before; not searched again
    is_dense: bool = False  # no gaps between the offsets of batches


class _Before(NamedTuple):
    """The batch before the one being checked."""

    position: int
    least_offset: int  # the lowest base offset it could have
    span: int  # how many offsets it covers


class BadBatch(CorruptionError):
    """A batch that fails its checks; the extent of the damage is not known yet."""

    def __init__(self, text: str, segment: Segment, position: int) -> None:
        super().__init__(text)
        self.segment = segment
        self.position = position


class Unreadable(DamagedRecords):
    """A read reached offsets that are known to be damaged."""

    def __init__(self, segment: Segment, damage: Damage) -> None:
        start, end = damage.start_offset, damage.end_offset
        super().__init__(
            f"{segment.path()}: offsets {start} to {end - 1} cannot be read: {damage.problem}; "
            f"restore this segment from a copy, or go on from offset {end} (seq {end + 1})"
        )
        self.segment = segment
        self.damage = damage


def damage_at(known: Sequence[Damage], position: int) -> Damage | None:
    """The known damage that contains this position, if any."""
    return next((d for d in known if d.position <= position < d.end_position), None)


def next_damage(segment: Segment, position: int) -> int:
    """Where the next known damage begins; raises ``Unreadable`` if ``position`` is damaged."""
    damage = damage_at(segment.damage, position)
    if damage is not None:
        raise Unreadable(segment, damage)
    behind = (d.position for d in segment.damage if d.position > position)
    return min(behind, default=segment.size_bytes)


def find_damage(area: Area, position: int) -> Damage | None:
    """The damage that stopped a reader at ``position``; None if every batch there is sound."""
    start, least = _sound_start(area, position)
    before: _Before | None = None
    while start < area.end_position:
        header, problem = _check(area, start, least)
        if not problem and area.is_dense and header is not None and header.base_offset != least:
            problem = f"the batch at position {start} has offset {header.base_offset}, not {least}"
        if problem:
            return _around(area, start, least, before, problem)
        if before is not None and before.position >= position:
            return None
        assert header is not None
        before = _Before(start, least, header.last_offset_delta + 1)
        start, least = start + header.size_bytes, header.end_offset
    return None


def _check(area: Area, position: int, least_offset: int) -> tuple[BatchHeader | None, str]:
    return check_batch(area.read, position, area.end_position, least_offset, area.end_offset)


def _sound_start(area: Area, position: int) -> tuple[int, int]:
    """The position and base offset of a sound batch before ``position``."""
    passed = [known for known in area.known if known.end_position <= position]
    start = passed[-1].end_position if passed else 0
    for entry in reversed([e for e in area.entries if start < e.position < position]):
        header, problem = _check(area, entry.position, area.base_offset)
        if header is not None and not problem and header.last_offset == entry.offset:
            return entry.position, header.base_offset
    return start, passed[-1].end_offset if passed else area.base_offset


def _around(
    area: Area,
    start: int,
    least: int,
    before: _Before | None,
    problem: str,
) -> Damage:
    """The damage whose first symptom is at ``start``."""
    if before is not None and (lie := _lie(area, start, before)) is not None:
        return lie
    end = _next_sound(area, start, least)
    end_offset = area.end_offset
    if end < area.end_position:
        header, _ = _check(area, end, least)
        assert header is not None
        end_offset = header.base_offset
    return Damage(start, end, least, end_offset, problem)


def _lie(area: Area, start: int, before: _Before) -> Damage | None:
    """The damage, if only the offsets of the previous batch are wrong.

    The checksum does not cover offsets. This is the case if the batch at ``start`` is valid once
    the previous batch has the lowest offsets it could have.
    """
    position, least_offset, span = before
    header, problem = _check(area, start, least_offset + span)
    if problem or header is None:
        return None
    lie = f"the batch at position {position} has offsets that belong to the batches after it"
    return Damage(position, start, least_offset, header.base_offset, lie)


def _next_sound(area: Area, start: int, least: int) -> int:
    """Where the first sound batch after ``start`` begins; the end of the area if there is none."""
    header, _ = _check(area, start, least)
    if header is not None and header.size_bytes >= HEADER_BYTES:
        claimed = start + header.size_bytes
        if claimed == area.end_position or _is_sound(area, claimed, least):
            return claimed
    behind = [entry.position for entry in area.entries if entry.position > start]
    end = next((at for at in behind if _is_sound(area, at, least)), area.end_position)
    searched = min(end, start + SEARCH_BYTES)
    position = find_batch(area.read, start + 1, searched, least)
    return end if position is None or not _is_sound(area, position, least) else position


def _is_sound(area: Area, position: int, least: int) -> bool:
    return position < area.end_position and not _check(area, position, least)[1]
