"""When the kernels are there: numba takes a while to load, and a client must not wait for it.

``kernels()`` loads them, waiting as long as that takes; who cannot wait asks ``is_warm()`` and goes
the plain-Python way meanwhile, while a background thread runs ``warm()``.
"""

from __future__ import annotations

import gc
import importlib
import threading
from types import ModuleType

_loading = threading.Lock()
_loaded: ModuleType | None = None
_starting = threading.Lock()  # never held for long: the event loop asks for it
_is_warming = False


def kernels() -> ModuleType:
    """The kernels module, loaded (and compiled, where no cache is) by whoever asks first."""
    global _loaded  # noqa: PLW0603 - a module is loaded once for the whole process
    if _loaded is None:
        with _loading:
            _loaded = _loaded or importlib.import_module("cordwood.batch.kernels.batches")
    return _loaded


def kernels_ready() -> bool:
    """Whether ``kernels()`` answers at once."""
    return _loaded is not None


def load_kernels() -> None:
    """Load all kernels; for a background thread at start-up."""
    kernels()


def load_kernels_soon() -> None:
    """The same beside whoever asks: the first traffic calls it, and does not wait."""
    global _is_warming
    with _starting:
        is_first, _is_warming = not _is_warming, True
    if is_first:
        threading.Thread(target=_warm_and_keep, name="cordwood-warm", daemon=True).start()


def _warm_and_keep() -> None:
    """Load the kernels, and spare every later garbage collection the walk over what they made."""
    load_kernels()
    gc.freeze()
