"""Generate SMPTE timecode of several decks with a known number of deliberate faults.

25 frames per second, ``HH:MM:SS:FF`` from 10:00:00:00. A frame may be lost (a gap) or sent twice;
the audit must find exactly these faults.
"""

from __future__ import annotations

import random
from typing import NamedTuple

FRAMES_PER_SECOND = 25
FIRST_HOUR = 10


class Tape(NamedTuple):
    """The timecodes that one deck sends, and the faults among them."""

    deck: str
    codes: list[str]
    missing: list[str]
    doubled: list[str]


def timecode(frame: int) -> str:
    """The timecode of a frame, counted from 10:00:00:00."""
    seconds, frames = divmod(frame, FRAMES_PER_SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{FIRST_HOUR + hours:02d}:{minutes:02d}:{seconds:02d}:{frames:02d}"


def frame_number(code: str) -> int:
    """The inverse of ``timecode``."""
    hours, minutes, seconds, frames = (int(part) for part in code.split(":"))
    whole = ((hours - FIRST_HOUR) * 60 + minutes) * 60 + seconds
    return whole * FRAMES_PER_SECOND + frames


def record_tape(seed: int, deck: str, frames: int, missing: int, doubled: int) -> Tape:
    """Generate a deck's frames; ``missing`` of them are lost and ``doubled`` are sent twice."""
    chance = random.Random(f"{seed}-{deck}")  # noqa: S311 - the same seed gives the same tape
    faulty = chance.sample(range(1, frames - 1), missing + doubled)
    lost, twice = set(faulty[:missing]), set(faulty[missing:])
    codes: list[str] = []
    for frame in range(frames):
        if frame in lost:
            continue
        codes += [timecode(frame)] * (2 if frame in twice else 1)
    return Tape(
        deck, codes, [timecode(f) for f in sorted(lost)], [timecode(f) for f in sorted(twice)]
    )


def find_faults(codes: list[str], frames: int) -> tuple[list[str], list[str]]:
    """The missing and the doubled timecodes, found from the codes alone."""
    numbers = [frame_number(code) for code in codes]
    seen: set[int] = set()
    doubled = []
    for number in numbers:
        if number in seen:
            doubled.append(timecode(number))
        seen.add(number)
    missing = [timecode(number) for number in range(frames) if number not in seen]
    return missing, doubled
