"""How to add an optional part of cordwood to the Python that runs, for errors and ``doctor``.

``pip install "cordwood[spark]"`` is right however cordwood was installed: pip takes the installed
cordwood, a clone's too, and adds what the extra names. But it must be the pip of this environment,
which need not be activated; so a command names this Python wherever ``pip`` is another one's.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


def install_command(extra: str) -> str:
    """The command that adds ``cordwood[extra]`` to this environment."""
    has_pip = importlib.util.find_spec("pip") is not None
    return f'{_installer(sys.executable, os.environ, has_pip=has_pip)} "cordwood[{extra}]"'


def _installer(executable: str, environ: Mapping[str, str], *, has_pip: bool) -> str:
    path = environ.get("PATH", os.defpath)
    if not has_pip and shutil.which("uv", path=path):
        return f"uv pip install --python {shlex.quote(executable)}"
    found = shutil.which("pip", path=path)
    if not executable or (found and Path(found).parent == Path(executable).parent):
        return "pip install"
    return f"{shlex.quote(executable)} -m pip install"
