"""Which topics match a regular expression; each topic is matched once while it exists.

The matcher's time is linear (``decide.re2``), matching pauses for other requests, and a pattern
whose matching costs more than ``STEPS_MAX`` is refused, so no pattern can stop the broker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.decide.re2 import Pattern, PatternError

PATTERNS_MAX: Final = 1_000
STEPS_MAX: Final = 2_000_000  # well under a second; an ordinary pattern needs some hundreds


class TopicMatches:
    """The topics that match one pattern."""

    def __init__(self, text: str, steps_max: int) -> None:
        self._text = text
        self._steps_max = steps_max
        self._pattern = Pattern(text)
        self._seen: dict[str, bool] = {}
        self._version = -1
        self._matches: frozenset[str] = frozenset()

    async def update(self, topics: TopicService) -> frozenset[str]:
        """Return the matching topics; raises ``PatternError`` if that is too costly."""
        version = topics.version
        if version == self._version:
            return self._matches
        seen: dict[str, bool] = {}
        async for name in RequestSlices().of(list(topics.all())):
            known = self._seen.get(name)
            seen[name] = self._pattern.matches(name) if known is None else known
            if self._pattern.steps > self._steps_max:
                raise PatternError(
                    f"the regular expression {self._text!r} is too costly to match; use fewer "
                    "repetitions and alternatives"
                )
        self._seen, self._version = seen, version
        self._matches = frozenset(name for name, is_match in seen.items() if is_match)
        return self._matches


class TopicPatterns:
    """The patterns in use, with what they match. Used only on the event loop."""

    def __init__(self, topics: TopicService, steps_max: int = STEPS_MAX) -> None:
        self._topics = topics
        self._steps_max = steps_max
        self._patterns: OrderedDict[str, TopicMatches] = OrderedDict()

    async def matches(self, text: str) -> frozenset[str]:
        """Return the topics that match as a whole; raises ``PatternError``."""
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = self._patterns[text] = TopicMatches(text, self._steps_max)
        self._patterns.move_to_end(text)
        while len(self._patterns) > PATTERNS_MAX:
            self._patterns.popitem(last=False)
        return await pattern.update(self._topics)
