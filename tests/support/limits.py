"""Resource limits that a test needs or sets."""

from __future__ import annotations

import resource
import sys

import pytest


def require_open_files(count: int) -> None:
    """Skip the test if this process may not open that many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # conftest has raised the soft limit
    if min(soft, hard) < count:
        pytest.skip(f"missing tool: {count} open files (ulimit -Hn is {hard})")


def open_files(count: int) -> list[str]:
    """Return a command prefix that limits the number of open files."""
    script = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count})); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", script]
