"""What a check returns, and how amounts are written in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cordwood.config import GIB, MIB


class CheckState(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``remedy`` says what to do, and is empty if there is nothing."""

    check: str
    state: CheckState
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> CheckResult:
    """Return a finding that needs nothing."""
    return CheckResult(check, CheckState.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """Return a finding that is worth knowing."""
    return CheckResult(check, CheckState.WARNING, found, remedy)


def problem(check: str, found: str, remedy: str) -> CheckResult:
    """Return a finding that stops something from working."""
    return CheckResult(check, CheckState.PROBLEM, found, remedy)


def gib(count: int) -> str:
    """Write a number of bytes as MiB or GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count // MIB} MiB"
