"""Client methods are declared once, and exist in the blocking and in the asyncio client."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from cordwood import client as blocking
from cordwood.client import aio

CLASSES = ("Producer", "Client", "Subscription")


def public_methods(owner: type) -> dict[str, object]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    return {name: getattr(owner, name) for name in names if callable(getattr(owner, name))}


@pytest.mark.parametrize("name", CLASSES)
def test_both_clients_have_the_same_methods_with_the_same_parameters(name):
    """Both clients have the same methods with the same signatures."""
    ours, theirs = (public_methods(getattr(kind, name)) for kind in (blocking, aio))
    assert ours.keys() == theirs.keys()
    for method in ours:
        signatures = [inspect.signature(kind[method]) for kind in (ours, theirs)]
        assert signatures[0] == signatures[1], method


@pytest.mark.parametrize("name", CLASSES)
def test_methods_of_the_async_client_are_coroutine_functions(name):
    """All async methods are coroutine functions, except ``subscribe``."""
    for method, function in public_methods(getattr(aio, name)).items():
        assert inspect.iscoroutinefunction(function) == (method != "subscribe"), method
    for method, function in public_methods(getattr(blocking, name)).items():
        assert not inspect.iscoroutinefunction(function), method


@pytest.mark.parametrize("kind", [blocking, aio])
def test_help_shows_what_a_caller_gets(kind):
    """``help()`` shows the method's own return type, parameters and docstring, without ``self``."""
    assert get_type_hints(kind.Client.get_ack)["return"] is int
    bound = kind.Client("127.0.0.1:1").status
    assert list(inspect.signature(bound).parameters) == ["seq", "topic", "partition"]
    assert (
        bound.__doc__
        == "Return the state of a record; name the partition if the topic has several."
    )
