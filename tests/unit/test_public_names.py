"""The public API: every name exists, is cheap to import, and exports the types it mentions."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator

import pytest

import cordwood
from cordwood import errors

PUBLIC = [
    "cordwood",
    "cordwood.client",
    "cordwood.client.aio",
    "cordwood.errors",
    "cordwood.spark",
    "cordwood.testing",
]


def public_names(module_name: str) -> dict[str, object]:
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module_name
    ]
    return {name: getattr(module, name) for name in names}


def functions_of(value: object) -> Iterator[object]:
    """Yield the function itself, or a class's constructor, public methods and properties."""
    if not inspect.isclass(value):
        yield value
        return
    for name in dir(value):
        if not name.startswith("_") or name in {"__init__", "__next__", "__anext__"}:
            member = inspect.getattr_static(value, name)
            function = member.fget if isinstance(member, property) else getattr(value, name)
            if not (inspect.getdoc(function) or "").startswith("Internal: "):
                yield function


def types_in(annotation: object) -> Iterator[type]:
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from types_in(inner)


def hints(function: object) -> dict[str, object]:
    """Return the annotations, or none if they use Spark types that only type checkers import."""
    try:
        return typing.get_type_hints(function)
    except NameError:
        assert function.__module__ == "cordwood.spark"
        return {}


def mentioned_types(value: object) -> set[type]:
    annotations = [
        annotation
        for function in functions_of(value)
        if inspect.isfunction(function)
        for annotation in hints(function).values()
    ]
    if inspect.isclass(value):
        own = typing.get_type_hints(value)
        annotations += [own[name] for name in own if not name.startswith("_")]
    return {
        kind
        for annotation in annotations
        for kind in types_in(annotation)
        if kind.__module__.startswith("cordwood")
    }


def mentioned_errors(value: object) -> set[type]:
    documents = [inspect.getdoc(value), *map(inspect.getdoc, functions_of(value))]
    words = {word for text in documents for word in re.findall(r"``(\w+)``", text or "")}
    found = {getattr(errors, word, None) for word in words}
    return {kind for kind in found if inspect.isclass(kind) and issubclass(kind, Exception)}


FRONT = {id(value) for name in PUBLIC for value in public_names(name).values()}
MENTIONS = [
    pytest.param(value, id=f"{module}.{name}")
    for module in PUBLIC
    for name, value in public_names(module).items()
    if callable(value)
]


@pytest.mark.parametrize("value", MENTIONS)
def test_every_type_that_a_public_name_mentions_can_be_imported_from_the_front(value):
    """Every type in a public signature, property or field can be imported from a public module."""
    hidden = {kind for kind in mentioned_types(value) if id(kind) not in FRONT}
    assert hidden == set()


@pytest.mark.parametrize("value", MENTIONS)
def test_every_error_that_a_public_name_mentions_can_be_imported_from_the_front(value):
    """Every error in a public docstring can be imported from a public module."""
    hidden = {kind for kind in mentioned_errors(value) if id(kind) not in FRONT}
    assert hidden == set()


def test_errors_of_the_client_are_found_by_the_walk():
    """The search finds a type in a signature and an error in a docstring."""
    assert cordwood.Status in mentioned_types(cordwood.Client)
    assert errors.UnavailableError in mentioned_errors(cordwood.Producer)


def test_every_public_name_exists_and_is_listed_by_dir():
    """Every name in ``__all__`` exists and is listed by ``dir``."""
    assert dir(cordwood) == sorted(cordwood.__all__)
    for name in cordwood.__all__:
        assert getattr(cordwood, name) is not None
    with pytest.raises(AttributeError, match="'cordwood' has no attribute 'Broker'"):
        _ = cordwood.Broker


def test_importing_cordwood_imports_nothing_else_of_it():
    """Importing ``cordwood`` imports no other module of the package."""
    code = "import sys, cordwood; print(*(m for m in sys.modules if m.startswith('cordwood')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["cordwood"]
