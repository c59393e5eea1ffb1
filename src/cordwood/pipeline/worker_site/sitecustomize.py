"""Imported by Python itself, before anything else, where this directory is on ``PYTHONPATH``.

Also takes Spark's ``pyspark.zip`` off the path where it lies within an installed pyspark. It holds
the same modules as source code only, and a zip file keeps no compiled ones: every worker would
compile pyspark again, 1.5 seconds of a core instead of 0.3.

Imports nothing but the standard library, and of that little: every Python that Spark starts passes
here. An error would be printed by every one of them, so there is next to nothing that could fail.
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
    """The module, not kept under its name."""
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_hidden() -> ModuleSpec | None:
    """The ``sitecustomize`` that Python would have imported without us."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != HERE]  # noqa: PTH100
    return PathFinder.find_spec("sitecustomize", others)


def without_zip(paths: list[str]) -> list[str]:
    """Those to import from, less the zip files whose modules are installed on the same path."""
    kept = []
    for path in paths:
        root = path[: -len(ZIP)] if path.endswith(ZIP) else None
        if root is None or root not in paths:
            kept.append(path)
    return kept


def main() -> None:
    """Connect if this is the worker that must hurry; in any case hand on to whom we hide."""
    sys.path[:] = without_zip(sys.path)
    first = None
    if HURRIED in sys.orig_argv:
        place = os.path.join(os.path.dirname(HERE), "connect_first.py")  # noqa: PTH118, PTH120
        first = load(importlib.util.spec_from_file_location("cordwood_connect_first", place))
    connected = first and first.connect_or_exit()
    try:
        load(find_hidden())
    finally:
        if first and connected:
            first.hand_over(connected)


if __name__ == "sitecustomize":
    main()
