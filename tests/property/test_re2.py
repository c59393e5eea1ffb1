"""A pattern in RE2's syntax matches what Python's ``re`` says, where both know the syntax."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.re2 import Pattern

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "-", "^", "$", "(?:)"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda parts: f"(?:{parts[0]}){parts[1]}"
        ),
    ),
    max_leaves=8,
)


@given(patterns, st.lists(st.text("ab-1A", max_size=6), max_size=8))
def test_the_same_texts_match(pattern, texts):
    """For any pattern and texts, also when transitions were kept from an earlier text."""
    compiled = Pattern(pattern)
    for text in [*texts, *texts]:
        assert compiled.matches(text) == bool(re.fullmatch(pattern, text)), text
