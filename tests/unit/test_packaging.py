"""The package's metadata and the lock file for development agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_ITS_CODE = {"all", "check", "dev"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = (ROOT / "requirements" / "dev.lock").read_text()


def locked(python: str) -> dict[str, str]:
    """Return the version of each package that the lock has for a Python on Linux."""
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    needed = [Requirement(line) for line in lines]
    return {
        canonical(each.name): str(each.specifier).removeprefix("==")
        for each in needed
        if each.marker is None or each.marker.evaluate(environment)
    }


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[str]:
    """Return every requirement of the core and of the extras, except on cordwood itself."""
    extras = [each for some in EXTRAS.values() for each in some]
    return [
        each for each in (*PROJECT["dependencies"], *extras) if not each.startswith("cordwood[")
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_the_project(python):
    """Every requirement has a locked version that it allows; if not, run `make lock`."""
    versions = locked(python)
    for text in requirements():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"python_version": python}):
            version = versions.get(canonical(needed.name))
            assert version, f"{text} is not in requirements/dev.lock: run `make lock`"
            assert needed.specifier.contains(version), f"{text}, locked {version}: run `make lock`"


def test_the_lock_names_versions_and_no_index():
    """The file has versions and markers only: where packages come from is the user's choice."""
    assert "://" not in LOCK
    assert not [line for line in LOCK.splitlines() if line.startswith("-")]


def test_all_is_every_extra_that_the_program_can_use():
    """``cordwood[all]`` brings each extra but those for working on cordwood."""
    (everything,) = EXTRAS["all"]
    assert Requirement(everything).extras == set(EXTRAS) - FOR_ITS_CODE


def test_every_supported_python_is_a_classifier():
    """The versions that `make wheel-test` tries are those that the metadata names."""
    prefix = "Programming Language :: Python :: 3."
    named = [each for each in PROJECT["classifiers"] if each.startswith(prefix)]
    assert named == [f"{prefix}{python.split('.')[1]}" for python in PYTHONS]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PROJECT["classifiers"] == sorted(PROJECT["classifiers"])


def test_an_upper_bound_has_its_reason():
    """Bounds from above hold users back, so each is explained among the decisions."""
    decision = (ROOT / "docs/decisions/0006-dependencies-each-defended.md").read_text()
    bounded = [Requirement(text) for text in requirements() if "<" in text.partition(";")[0]]
    assert [each.name for each in bounded] == ["pandas"]
    for each in bounded:
        assert f"`{each.name}{str(each.specifier).split(',')[0]}`" in decision
