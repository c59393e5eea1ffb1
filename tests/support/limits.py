"""What a machine may not give a test."""

from __future__ import annotations

import resource

import pytest


def require_open_files(count: int) -> None:
    """Skip, and say so at the end of the run, where this process may not have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # conftest has raised the soft one
    if min(soft, hard) < count:
        pytest.skip(f"missing tool: {count} open files (ulimit -Hn is {hard})")
