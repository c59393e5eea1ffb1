"""The syntax of RE2's regular expressions: a pattern becomes a tree of nodes. Pure.

``re2`` says what is supported, and matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NESTING_MAX: Final = 100
REPEAT_MAX: Final = 1_000  # as in RE2

Ranges = tuple[tuple[int, int], ...]  # of character codes, both ends included
_LAST: Final = 0x10FFFF
_ANY: Final[Ranges] = ((0, _LAST),)
_DIGIT: Final[Ranges] = ((48, 57),)
_LOWER: Final[Ranges] = ((97, 122),)
_UPPER: Final[Ranges] = ((65, 90),)
_WORD: Final[Ranges] = (*_DIGIT, *_UPPER, (95, 95), *_LOWER)
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_CLASSES: Final[dict[str, Ranges]] = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: Final[dict[str, Ranges]] = {
    "alnum": (*_DIGIT, *_UPPER, *_LOWER),
    "alpha": (*_UPPER, *_LOWER),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": _LOWER,
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": (*_DIGIT, (65, 70), (97, 102)),
}
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


class PatternError(ValueError):
    """A pattern that is not in RE2's syntax, or that is too costly."""


class One(NamedTuple):
    """Matches one character."""

    ranges: Ranges


class Boundary(NamedTuple):
    """Matches at the start or at the end of the text."""

    at_end: bool


class Sequence(NamedTuple):
    """Matches its parts one after the other."""

    parts: tuple[Node, ...]


class Either(NamedTuple):
    """Matches any of its parts."""

    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    """Matches its part several times; without a most, any number of times."""

    part: Node
    least: int
    most: int | None


Node = One | Boundary | Sequence | Either | Repeat
_EMPTY: Final = Sequence(())


# --- parsing --------------------------------------------------------------------------------


class Parser:
    """Reads a pattern; raises ``PatternError``."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._ignores_case = False
        self._depth = 0

    def parse(self) -> Node:
        """Return the whole pattern."""
        node = self._either()
        if self._at < len(self._pattern):
            raise self._error("a ) without its (")
        return node

    def _error(self, problem: str) -> PatternError:
        return PatternError(
            f"{problem} at character {self._at + 1} of the regular expression {self._pattern!r}"
        )

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _skip(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._error("an unexpected end")
        self._at += 1
        return self._pattern[self._at - 1]

    def _either(self) -> Node:
        ignored_case = self._ignores_case  # flags last until the group ends
        parts = [self._sequence()]
        while self._skip("|"):
            parts.append(self._sequence())
        self._ignores_case = ignored_case
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and not (self._peek("|") or self._peek(")")):
            if self._skip("\\Q"):
                end = self._pattern.find("\\E", self._at)
                literal = self._pattern[self._at : end if end >= 0 else None]
                self._at += len(literal) + 2 * (end >= 0)
                parts += [self._one(((ord(each), ord(each)),)) for each in literal]
                if parts:
                    parts[-1] = self._repeated(parts[-1])
                continue
            parts.append(self._repeated(self._atom()))
        return Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._skip("?")  # reluctant: the same texts match
        if self._bounds() is not None:
            raise self._error("a repetition of a repetition")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Return the least and most of a repetition, if one follows."""
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(mark):
                return bounds
        end = self._pattern.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        least, comma, most = self._pattern[self._at + 1 : end].partition(",")
        if not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # a brace for itself
        self._at = end + 1
        low, high = int(least), int(most) if most else None
        if not comma:
            high = low
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise self._error(f"a repetition that is not between 0 and {REPEAT_MAX}")
        return low, high

    def _atom(self) -> Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return One(_ANY)
            case "^" | "$":
                return Boundary(character == "$")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._at -= 1
                raise self._error(f"a {character} with nothing to repeat")
        return self._one(((ord(character), ord(character)),))

    def _one(self, ranges: Ranges) -> One:
        return One(_fold(ranges) if self._ignores_case else ranges)

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._error(f"more than {NESTING_MAX} nested groups")
        ignored_case = self._ignores_case
        if self._skip("?") and not self._flags():
            self._depth -= 1
            return _EMPTY  # flags for the rest of the enclosing group
        node = self._either()
        if not self._skip(")"):
            raise self._error("a ( without its )")
        self._ignores_case = ignored_case
        self._depth -= 1
        return node

    def _flags(self) -> bool:
        """Read what follows ``(?``; return whether a group follows."""
        if self._skip("P<") or self._skip("<"):
            end = self._pattern.find(">", self._at)
            name = self._pattern[self._at : max(end, self._at)]
            if not name.isidentifier():
                raise self._error("look-around or a group without a name, which are not supported,")
            self._at = end + 1
            return True
        sets = True
        while (flag := self._next()) not in {":", ")"}:
            if flag == "-" and sets:
                sets = False
            elif flag == "i":
                self._ignores_case = sets
            elif flag not in "msU":
                self._at -= 1
                raise self._error("a group of a kind that is not supported")
        return flag == ":"

    def _escape(self) -> Node:
        character = self._next()
        if character in "Az":
            return Boundary(character == "z")
        ranges = self._escaped_class(character)
        if ranges is not None:
            return self._one(ranges)
        code = self._escaped_code(character)
        return self._one(((code, code),))

    def _escaped_class(self, character: str) -> Ranges | None:
        ranges = _CLASSES.get(character.lower())
        return _others(ranges) if ranges and character.isupper() else ranges

    def _escaped_code(self, character: str) -> int:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            return self._hexadecimal()
        if not character.isalnum() and character.isascii():
            return ord(character)
        self._at -= 1
        raise self._error(f"the escape \\{character}, which is not supported,")

    def _hexadecimal(self) -> int:
        if self._skip("{"):
            end = self._pattern.find("}", self._at)
            digits = self._pattern[self._at : max(end, self._at)]
            self._at += len(digits) + 1
        else:
            digits = self._next() + self._next()
        try:
            code = int(digits, 16)
        except ValueError:
            code = _LAST + 1
        if code > _LAST:
            raise self._error("a character code that is not one")
        return code

    def _class(self) -> Node:
        """Read a class after its ``[``."""
        is_negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self._peek("]"):
            ranges += self._class_part()
            is_first = False
        self._at += 1
        found = _merged(_fold(ranges) if self._ignores_case else ranges)
        return One(_others(found) if is_negated else found)

    def _class_part(self) -> Ranges:
        if self._skip("[:"):
            is_negated = self._skip("^")
            end = self._pattern.find(":]", self._at)
            ranges = _POSIX.get(self._pattern[self._at : max(end, self._at)])
            if ranges is None:
                raise self._error("a class [:name:] that does not exist")
            self._at = end + 2
            return _others(ranges) if is_negated else ranges
        character = self._next()
        if character == "\\":
            character = self._next()
            ranges = self._escaped_class(character)
            if ranges is not None:
                return ranges
            low = self._escaped_code(character)
        else:
            low = ord(character)
        high = low
        is_range = self._peek("-") and not self._peek("-]")
        if is_range:
            self._at += 1
            character = self._next()
            high = self._escaped_code(self._next()) if character == "\\" else ord(character)
        if high < low:
            raise self._error("a range that ends before it begins")
        return ((low, high),)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(REPEAT_MAX))


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def _others(ranges: Ranges) -> Ranges:
    """The characters that are in none of the ranges."""
    others, start = [], 0
    for low, high in _merged(ranges):
        if start < low:
            others.append((start, low - 1))
        start = high + 1
    return (*others, (start, _LAST)) if start <= _LAST else tuple(others)


def _fold(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges with the ASCII letters of the other case."""
    folded = list(ranges)
    for low, high in list(folded):
        for first, last, shift in ((65, 90, 32), (97, 122, -32)):
            start, end = max(low, first), min(high, last)
            if start <= end:
                folded.append((start + shift, end + shift))
    return _merged(folded)
