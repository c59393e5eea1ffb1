"""What the broker knows of the pipeline it started: facts for health, metrics and the API.

Filled in by whoever supervises the pipeline; the broker never needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class PipelineState(StrEnum):
    """Where the embedded pipeline is in its life."""

    OFF = "off"  # not wanted, or run elsewhere
    MISSING = "missing"  # Spark or Java is not installed
    STARTING = "starting"
    UP = "up"
    WAITING = "waiting"  # it died, and is started again after a pause


@dataclass(slots=True)
class PipelineFacts:
    """The embedded pipeline, now."""

    state: PipelineState = PipelineState.OFF
    detail: str = ""
    restarts: int = 0
    pid: int | None = None
    jobs: dict[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """As JSON answers show it."""
        return {
            "state": self.state.value,
            "detail": self.detail,
            "restarts": self.restarts,
            "pid": self.pid,
            "jobs": self.jobs,
        }
