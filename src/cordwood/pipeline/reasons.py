"""Why Spark refused or failed, in a sentence for people; pages of Java's stack help nobody."""

from __future__ import annotations

import re
from typing import Final

_NOISE: Final = re.compile(r"^\[[A-Z0-9_.]+\] |\.? SQLSTATE: \w+;?")  # Spark's codes
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


def plain_reason(error: Exception) -> str:
    """Our own reason where a task met one, else the first cause, else what Spark says first."""
    text = str(error).split("\n== SQL")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("cordwood.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    causes = _CAUSE.findall(text)
    first = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return _NOISE.sub("", first).rstrip(";")
