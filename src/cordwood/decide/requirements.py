"""Whether installed packages have the versions that cordwood's metadata requires.

Understands what our own metadata says: bounds on release numbers (``>=2.2,<3``), and markers about
the Python version, the platform and an extra. A test holds every requirement of ``pyproject.toml``
against it, and ``packaging`` is not installed where only the broker is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Final, NamedTuple

Release = tuple[int, ...]

_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^]]*)\])?\s*\(?(?P<bounds>[^;)]*)\)?\s*(?:;(?P<marker>.*))?"
)
_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*([\w.]+)\s*")
_CONDITION: Final = re.compile(r"\(?\s*(\w+)\s*(>=|<=|==|!=|>|<)\s*['\"]([^'\"]*)['\"]\s*\)?")
_COMPARE: Final[Mapping[str, Callable[[int], bool]]] = {
    ">=": lambda sign: sign >= 0,
    "<=": lambda sign: sign <= 0,
    "==": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
    ">": lambda sign: sign > 0,
    "<": lambda sign: sign < 0,
}


class Requirement(NamedTuple):
    """One line of ``Requires-Dist``."""

    name: str
    bounds: str  # such as >=2.2,<3; empty for any version
    extra: str  # the extra that needs it; empty for the core
    conditions: tuple[tuple[str, str, str], ...]  # other markers: variable, operator, value


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement as metadata has it; raises ``ValueError`` for any other text."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a requirement")
    bounds = ",".join(sorted(part.strip() for part in match["bounds"].split(",") if part.strip()))
    if not all(_BOUND.fullmatch(bound) for bound in bounds.split(",") if bound):
        raise ValueError(f"{text!r} has a bound that is not understood")
    conditions = _parse_marker(match["marker"] or "")
    extra = next((value for name, _, value in conditions if name == "extra"), "")
    others = tuple(each for each in conditions if each[0] != "extra")
    return Requirement(match["name"], bounds, extra, others)


def _parse_marker(marker: str) -> list[tuple[str, str, str]]:
    parts = [part.strip() for part in re.split(r"\band\b", marker) if part.strip()]
    matches = [_CONDITION.fullmatch(part) for part in parts]
    if not all(matches):
        raise ValueError(f"the marker {marker!r} is not understood")
    return [(match[1], match[2], match[3]) for match in matches if match]


def is_needed(requirement: Requirement, python: Release, platform: str) -> bool:
    """Whether the requirement applies to this Python and platform."""
    known = {"python_version": ".".join(map(str, python[:2])), "sys_platform": platform}
    return all(
        _COMPARE[operator](_compare(known[name], value))
        for name, operator, value in requirement.conditions
    )


def _compare(left: str, right: str) -> int:
    """Negative, zero or positive, as releases if both are; other texts are only equal or not."""
    if left[:1].isdigit() and right[:1].isdigit():
        return compare_releases(parse_release(left), parse_release(right))
    return (left > right) - (left < right)


def is_satisfied(version: str, bounds: str) -> bool:
    """Whether a version lies within all bounds."""
    release = parse_release(version)
    return all(
        _COMPARE[match[1]](compare_releases(release, parse_release(match[2])))
        for match in map(_BOUND.fullmatch, filter(None, bounds.split(",")))
        if match
    )


def parse_release(version: str) -> Release:
    """The leading numbers of a version: ``4.3.0.dev1`` is (4, 3, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def compare_releases(left: Release, right: Release) -> int:
    """Negative, zero or positive; 4.3 and 4.3.0 are equal."""
    for a, b in zip_longest(left, right, fillvalue=0):
        if a != b:
            return a - b
    return 0
