"""What a machine may not give a test."""

from __future__ import annotations

import resource
import sys

import pytest


def require_open_files(count: int) -> None:
    """Skip, and say so at the end of the run, where this process may not have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # conftest has raised the soft one
    if min(soft, hard) < count:
        pytest.skip(f"missing tool: {count} open files (ulimit -Hn is {hard})")


def open_files(count: int) -> list[str]:
    """What to put before a command, so that it may not open more files than that."""
    script = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count})); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", script]
