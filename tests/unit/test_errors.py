"""Errors are a table: two levels, every row filled in."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import pytest

from cordwood import errors
from cordwood.errors import CordwoodError

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CordwoodError) and kind is not CordwoodError
]
FAMILIES = [kind for kind in ALL if kind.__bases__ == (CordwoodError,)]
EXIT_CODES = {1, 2, 3, 4, 5, 6, 7}  # 0 is success and 130 is the operator's own doing


def test_families_are_the_five_of_the_house():
    """A sixth family is a decision, not an accident."""
    assert {family.__name__ for family in FAMILIES} == {
        "RequestError",
        "ProtocolError",
        "CorruptionError",
        "UnavailableError",
        "ConfigError",
    }


@pytest.mark.parametrize("kind", ALL)
def test_error_is_a_family_or_a_member_of_one(kind: type[CordwoodError]):
    """Two levels, no deeper, and one parent each."""
    assert kind in FAMILIES or (len(kind.__bases__) == 1 and kind.__bases__[0] in FAMILIES)


@pytest.mark.parametrize("kind", ALL)
def test_error_tells_what_a_client_and_a_shell_see(kind: type[CordwoodError]):
    """docs/errors.md is made of these attributes and of the docstring."""
    assert -1 <= kind.code <= 200
    assert re.fullmatch(r"[A-Z][A-Z_]+", kind.name)
    assert kind.exit_code in EXIT_CODES
    assert kind.__doc__
    assert kind.__doc__.rstrip().endswith(".")


def test_name_after_err_means_one_error():
    """A line protocol client tells errors apart by this word alone."""
    names = Counter(kind.name for kind in ALL)
    assert [name for name, count in names.items() if count > 1] == []


def test_everything_unavailable_may_be_tried_again():
    """That is what the family means."""
    family = errors.UnavailableError
    assert all(kind.retriable for kind in ALL if issubclass(kind, family))


def test_nothing_else_in_the_module_is_an_exception():
    """Every error of ours has the one root, so the edge can catch it."""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, BaseException):
            assert issubclass(kind, CordwoodError), name
