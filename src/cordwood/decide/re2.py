r"""Regular expressions in RE2's syntax, matched in time linear in the text. Pure.

Kafka matches the patterns of its clients with RE2/J, which never backtracks. Python's ``re`` does:
one hostile pattern of a dozen characters would stop the broker. So this module follows RE2: a
pattern becomes the instructions of a nondeterministic automaton, and matching walks through the set
of instructions that are possible after each character. Transitions between such sets are kept, so
that further texts cost one lookup per character.

What is bounded: the length of a pattern, its instructions, the nesting of its groups, the sets that
are kept, and ``steps``, the work for sets that were not kept, which the caller limits.

Not supported, as in RE2: back references and look-around. Not supported, unlike RE2: ``\b``,
``\B`` and Unicode classes such as ``\pL``. Flags other than ``i`` are accepted and change nothing,
because only whole texts without line breaks are matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from cordwood.decide.re2_syntax import (
    Boundary,
    Either,
    Node,
    One,
    Parser,
    PatternError,
    Repeat,
    Sequence,
)

__all__ = ["Pattern", "PatternError"]

PATTERN_CHARACTERS_MAX: Final = 8_192
INSTRUCTIONS_MAX: Final = 10_000
KEPT_SETS_MAX: Final = 2_000

# --- instructions ---------------------------------------------------------------------------


class Fork(NamedTuple):
    """Go on at both places."""

    first: int
    second: int


Instruction = One | Boundary | Fork | None  # None: the text matches


def _emit(node: Node, program: list[Instruction]) -> None:
    """Append the instructions of a node; each goes on at the next one."""
    if len(program) > INSTRUCTIONS_MAX:
        raise PatternError(
            f"the regular expression needs more than {INSTRUCTIONS_MAX} instructions; use smaller "
            "repetitions"
        )
    match node:
        case One() | Boundary():
            program.append(node)
        case Sequence(parts):
            for part in parts:
                _emit(part, program)
        case Either(parts):
            _emit_either(parts, program)
        case Repeat(part, least, most):
            for _ in range(least):
                _emit(part, program)
            if most is None:
                _emit_option(part, program, loops=True)
            else:
                for _ in range(most - least):
                    _emit_option(part, program, loops=False)


def _emit_option(part: Node, program: list[Instruction], *, loops: bool) -> None:
    start = len(program)
    program.append(None)
    _emit(part, program)
    if loops:
        program.append(Fork(start, start))
    program[start] = Fork(start + 1, len(program))


def _emit_either(parts: tuple[Node, ...], program: list[Instruction]) -> None:
    ends = []
    for part in parts[:-1]:
        start = len(program)
        program.append(None)
        _emit(part, program)
        ends.append(len(program))
        program.append(None)
        program[start] = Fork(start + 1, len(program))
    _emit(parts[-1], program)
    for end in ends:
        program[end] = Fork(len(program), len(program))


# --- matching -------------------------------------------------------------------------------

States = frozenset[int]
T = TypeVar("T")


class Pattern:
    """A compiled pattern. Not safe for several threads."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern; raises ``PatternError``."""
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise PatternError(
                f"the regular expression has {len(pattern)} characters; "
                f"{PATTERN_CHARACTERS_MAX} are allowed"
            )
        self.steps = 0
        self._program: list[Instruction] = []
        _emit(Parser(pattern).parse(), self._program)
        self._program.append(None)
        self._next: dict[tuple[States, str], States] = {}
        self._ends: dict[tuple[States, str], bool] = {}

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        if not text:
            return self._is_match(self._closure([0], lambda _: True))
        states = self._closure([0], lambda anchor: not anchor.at_end)
        for character in text[:-1]:
            states = self._step(states, character)
            if not states:
                return False
        return self._is_match_after(states, text[-1])

    def _step(self, states: States, character: str) -> States:
        found = self._next.get((states, character))
        if found is None:
            found = self._closure(self._consume(states, character), lambda _: False)
            self._keep(self._next, (states, character), found)
        return found

    def _is_match_after(self, states: States, character: str) -> bool:
        is_match = self._ends.get((states, character))
        if is_match is None:
            consumed = self._consume(states, character)
            is_match = self._is_match(self._closure(consumed, lambda anchor: anchor.at_end))
            self._keep(self._ends, (states, character), is_match)
        return is_match

    def _consume(self, states: States, character: str) -> list[int]:
        code = ord(character)
        self.steps += len(states)
        return [
            state + 1
            for state in states
            if isinstance(one := self._program[state], One)
            and any(low <= code <= high for low, high in one.ranges)
        ]

    def _closure(self, starts: Iterable[int], holds: Callable[[Boundary], bool]) -> States:
        """Every instruction that is reached without consuming a character."""
        found: set[int] = set()
        unseen = list(starts)
        while unseen:
            state = unseen.pop()
            if state in found:
                continue
            found.add(state)
            match self._program[state]:
                case Fork(first, second):
                    unseen += (first, second)
                case Boundary() as anchor if holds(anchor):
                    unseen.append(state + 1)
        self.steps += len(found)
        return frozenset(found)

    def _is_match(self, states: States) -> bool:
        return len(self._program) - 1 in states

    @staticmethod
    def _keep(kept: dict[tuple[States, str], T], key: tuple[States, str], value: T) -> None:
        if len(kept) >= KEPT_SETS_MAX:
            kept.clear()
        kept[key] = value
