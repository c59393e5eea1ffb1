"""Loads the numba kernels; this can take seconds, and no client should wait for it.

``kernels()`` loads them and blocks until they are ready. Code that must not block asks
``kernels_ready()`` and uses plain Python meanwhile, while a background thread loads them
(``load_kernels_soon()``).
"""

from __future__ import annotations

import gc
import importlib
import threading
from types import ModuleType
from typing import Any

_loading = threading.Lock()
_loaded: ModuleType | None = None
_starting = threading.Lock()  # held only briefly: the event loop takes it
_is_warming = False


class LazyKernels:
    """A module of kernels that is loaded when one of its functions is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Load the module and return its function or constant."""
        module = importlib.import_module(f"cordwood.batch.kernels.{self._name}")
        return getattr(module, attribute)


def kernels() -> ModuleType:
    """The kernels module; the first call loads it, and compiles it if there is no cache."""
    global _loaded  # noqa: PLW0603 - one module per process, loaded once
    if _loaded is None:
        with _loading:
            _loaded = _loaded or importlib.import_module("cordwood.batch.kernels.batches")
    return _loaded


def kernels_ready() -> bool:
    """Whether ``kernels()`` returns at once."""
    return _loaded is not None


def load_kernels() -> None:
    """Load all kernels; blocks until they are ready."""
    kernels()


def load_kernels_soon() -> None:
    """Start loading once, in a background thread; the first traffic calls this without waiting."""
    global _is_warming
    with _starting:
        is_first, _is_warming = not _is_warming, True
    if is_first:
        threading.Thread(target=_load_and_keep, name="cordwood-kernels", daemon=True).start()


def _load_and_keep() -> None:
    """Load the kernels, then exclude their objects from later garbage collections."""
    load_kernels()
    gc.freeze()
