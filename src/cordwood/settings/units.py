"""Durations and sizes as people write them: ``7d``, ``90s``, ``512MiB``, ``10GB``.

A plain number is milliseconds or bytes, as Kafka has it. Which of the two a setting holds is in its
name: ``retention.ms`` is a duration, ``segment.bytes`` a size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

DURATIONS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES: Final = {
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}
_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_duration_ms(text: str) -> int:
    """Parse ``500ms``, ``90s``, ``15m``, ``12h`` or ``7d``; raises ``ValueError``."""
    return _parse(text, DURATIONS_MS, "is not a duration; write 90s, 15m, 12h or 7d")


def parse_size(text: str) -> int:
    """Parse ``512MiB``, ``10GB`` and the like; raises ``ValueError``."""
    return _parse(text, SIZES, "is not a size; write bytes, or 64KiB, 512MiB, 10GB")


def in_base_unit(name: str, value: object) -> object:
    """A setting's text with a unit as milliseconds or bytes; anything else is left as it is."""
    if not isinstance(value, str) or not value.strip()[-1:].isalpha():
        return value
    words = name.split(".")
    if "ms" in words:
        return parse_duration_ms(value)
    return parse_size(value) if "bytes" in words else value


def _parse(text: str, units: Mapping[str, int], refusal: str) -> int:
    match = _AMOUNT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} {refusal}")
    whole, _, fraction = match[1].partition(".")
    amount = int(whole + fraction) * unit  # in integers: exact for any number of digits
    scale: int = 10 ** len(fraction)
    if amount % scale:
        raise ValueError(f"{text!r} is not a whole number of {'ms' if 'ms' in units else 'bytes'}")
    return amount // scale
