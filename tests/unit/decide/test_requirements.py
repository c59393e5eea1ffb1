"""Requirements of the metadata are read, and versions compared with them."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Oracle
from packaging.specifiers import SpecifierSet

from cordwood.decide.requirements import is_needed, is_satisfied, parse_requirement

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(each for some in PROJECT["optional-dependencies"].values() for each in some),
]
RELEASES = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(
    lambda parts: ".".join(map(str, parts))
)
BOUNDS = st.lists(
    st.tuples(st.sampled_from([">=", "<=", "==", "!=", ">", "<"]), RELEASES).map("".join),
    max_size=3,
).map(",".join)


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_every_requirement_of_the_project_is_understood(text):
    """Name and bounds are those that the standard library of packaging reads."""
    ours, oracle = parse_requirement(text), Oracle(text)
    assert ours.name == oracle.name
    assert SpecifierSet(ours.bounds) == oracle.specifier
    for python in ((3, 11), (3, 13), (3, 14)):
        environment = {"python_version": ".".join(map(str, python)), "sys_platform": "linux"}
        wanted = oracle.marker is None or oracle.marker.evaluate(environment)
        assert is_needed(ours, python, "linux") == wanted


def test_a_requirement_of_an_extra_names_it():
    """Metadata puts the extra last in the marker, after other conditions."""
    text = "uvloop<1,>=0.19; sys_platform != 'win32' and extra == 'fast'"
    assert parse_requirement(text).extra == "fast"
    assert not is_needed(parse_requirement(text), (3, 11), "win32")


@pytest.mark.parametrize("text", ["", "numpy ~= 1.2", "a; b or c", "a @ file:///x"])
def test_what_is_not_understood_is_refused(text):
    """Bounds or markers that we do not write are errors, and never count as satisfied."""
    with pytest.raises(ValueError, match="not"):
        parse_requirement(text)


@given(RELEASES, BOUNDS)
def test_bounds_hold_as_packaging_says(version, bounds):
    """For releases our comparison agrees with the library that pip uses."""
    assert is_satisfied(version, bounds) == SpecifierSet(bounds).contains(version)
