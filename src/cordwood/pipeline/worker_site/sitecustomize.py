"""Imported by Python at startup, before anything else, if this directory is on ``PYTHONPATH``.

Connects the worker of a streaming source first (``connect_first``). Also removes Spark's
``pyspark.zip`` from ``sys.path`` if it belongs to an installed pyspark. The zip file holds the same
modules as source code only, and Python cannot cache bytecode in it, so every worker would compile
pyspark again: 1.5 s of CPU time instead of 0.3 s.

Imports little, and only from the standard library, because every Python process that Spark starts
runs this code and would print its errors.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HURRIED = "pyspark.sql.streaming.python_streaming_source_runner"
ZIP = "/pyspark/python/lib/pyspark.zip"
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib loads slowly


def load(spec: ModuleSpec | None) -> ModuleType | None:
    """Load and run a module without adding it to ``sys.modules``."""
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_hidden() -> ModuleSpec | None:
    """The ``sitecustomize`` that Python would import without this directory."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]  # noqa: PTH100
    return PathFinder.find_spec("sitecustomize", others)


def without_zip(paths: list[str]) -> list[str]:
    """The search path without a ``pyspark.zip`` whose installed pyspark is on it too."""
    kept = []
    for path in paths:
        root = path[: -len(ZIP)] if path.endswith(ZIP) else None
        if root is None or root not in paths:
            kept.append(path)
    return kept


def main() -> None:
    """Connect first in the streaming source's worker; always run the shadowed module as well."""
    sys.path[:] = without_zip(sys.path)
    first = None
    if HURRIED in sys.orig_argv:
        runtime = os.path.join(os.path.dirname(HERE), "runtime")  # noqa: PTH118, PTH120
        place = os.path.join(runtime, "connect_first.py")  # noqa: PTH118
        first = load(importlib.util.spec_from_file_location("cordwood_connect_first", place))
    connected = first and first.connect_or_exit()
    try:
        load(find_hidden())
    finally:
        if first and connected:
            first.hand_over(connected)


if __name__ == "sitecustomize":
    main()
