"""Java sources are compiled once per run, and brokers are ready for programs with groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cordwood.testing import Broker
from support.ecosystem import compile_java


@pytest.fixture
def broker():
    """A broker whose groups start without the usual delay."""
    with Broker(durability="os", group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Callable[[str, str], str]:
    """A function that compiles a source against a program's jars, once, and returns class paths."""
    paths: dict[str, str] = {}

    def compile_once(name: str, program: str) -> str:
        if name not in paths:
            paths[name] = compile_java(name, program, tmp_path_factory.mktemp(name))
        return paths[name]

    return compile_once
