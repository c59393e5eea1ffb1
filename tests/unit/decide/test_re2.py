"""Regular expressions in RE2's syntax."""

from __future__ import annotations

import pytest

from cordwood.decide.re2 import INSTRUCTIONS_MAX, PATTERN_CHARACTERS_MAX, Pattern, PatternError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("orders", "orders"),
        ("orders-.*[a-z]", "orders-eu"),
        ("^orders-[0-9]+$", "orders-42"),
        ("(a|b|c)x?", "b"),
        ("a{2,3}", "aaa"),
        ("a{2}", "aa"),
        ("a{2,}", "aaaaa"),
        ("a{,2}", "a{,2}"),  # a brace for itself
        ("(?i)ORDERS", "orders"),
        ("(?i:o)RDERS", "ORDERS"),
        ("(?P<name>x)(?<other>y)(?:z)", "xyz"),
        (r"\d\w\s\D\W\S", "1_ x-y"),
        (r"\Qa.b*\E+", "a.b**"),
        (r"\x41\x{42}\.", "AB."),
        ("[[:alpha:]]+[^[:alpha:]]", "ab1"),
        ("[]a-]+", "]a-"),
        (r"[\w.-]+", "a.b-c"),
        ("a*?b+?c??", "aabb"),
        (r"\Aa\z", "a"),
        ("", ""),
        ("a||b", ""),
        ("(^a|b$)+", "ab"),
    ],
)
def test_a_whole_text_matches(pattern, text):
    """The whole text has to match, as in Kafka."""
    assert Pattern(pattern).matches(text)
    assert not Pattern(pattern).matches(text + "!")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("orders", "orders-eu"),
        ("orders", "my-orders"),
        ("a{2,3}", "a"),
        ("a$b", "ab"),
        ("a^b", "ab"),
        ("[^a]", "a"),
        ("(?i)a(?-i)b", "AB"),
        (r"\D", "7"),
    ],
)
def test_a_part_that_matches_is_not_enough(pattern, text):
    """A part that matches is not enough."""
    assert not Pattern(pattern).matches(text)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "(a", "[a", "[", "*", "+a", "?", "a**", "a{2}{3}", "a{3,2}", "a{1001}"),
        *("(?=a)", "(?!a)", "(?<=a)", r"(a)\1", "(?#x)", "[b-a]", "[[:nothing:]]", "\\", r"\b"),
        *(r"\pL", r"\x{110000}", r"\xg0", "(?", "(?P<", "((((a{99}){99}){99}){99}"),
        "(" * 200 + ")" * 200,
        "a" * (PATTERN_CHARACTERS_MAX + 1),
    ],
)
def test_a_bad_pattern_is_refused_with_a_reason(pattern):
    """Patterns that RE2 refuses, that are not supported, or that are too large."""
    with pytest.raises(PatternError, match="regular expression"):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+$b", "(.*a){20}b", "(x+x+)+y"])
def test_matching_is_linear_in_the_text(pattern):
    """Patterns that take a backtracking matcher years take steps in proportion to the text."""
    steps = []
    for length in (100, 200):
        compiled = Pattern(pattern)
        assert not compiled.matches("a" * length + "!")
        steps.append(compiled.steps)
    assert steps[1] <= 2.5 * steps[0] + 1_000
    assert steps[1] < 200 * INSTRUCTIONS_MAX
