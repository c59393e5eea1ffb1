"""What the broker knows of the pipeline it started: facts for health, metrics and the API.

Filled in by whoever supervises the pipeline; the broker never needs it.
"""

from __future__ import annotations

from collections import Counter
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
class PipelineStatus:
    """The embedded pipeline, now."""

    state: PipelineState = PipelineState.OFF
    detail: str = ""
    restarts: int = 0
    pid: int | None = None
    is_wanted: bool = False  # somebody supervises it, so it should be up
    jobs: dict[str, Any] = field(default_factory=dict)
    job_failures: Counter[str] = field(default_factory=Counter)  # over all lives of the child

    def take_report(self, jobs: dict[str, Any]) -> None:
        """How the jobs do now, as the child says; whatever it says is believed only if it fits."""
        for name, job in jobs.items():
            failed, before = _failures(job), _failures(self.jobs.get(name))
            self.job_failures[name] += max(0, failed - before)
        self.jobs = jobs

    def failed_jobs(self) -> dict[str, str]:
        """Jobs that do not run now, with what went wrong last; the child itself if it died."""
        if self.state is PipelineState.WAITING:
            return {"pipeline": self.detail}
        return {
            name: str(job["error"])
            for name, job in self.jobs.items()
            if isinstance(job, dict) and job.get("error") and not job.get("open")
        }

    def is_job_up(self, name: str) -> bool:
        """Whether a job runs, or its last round went well; none does while the child is not up."""
        return self.state is PipelineState.UP and name not in self.failed_jobs()

    def last_errors(self) -> dict[str, str]:
        """What went wrong last with each job, also when it runs again."""
        jobs = {name: job for name, job in self.jobs.items() if isinstance(job, dict)}
        return {name: str(job["error"]) for name, job in jobs.items() if job.get("error")}

    def described(self) -> dict[str, Any]:
        """As JSON answers show it."""
        return {
            "state": self.state.value,
            "detail": self.detail,
            "restarts": self.restarts,
            "pid": self.pid,
            "jobs": self.jobs,
            "job_failures": dict(self.job_failures),
        }


def _failures(job: Any) -> int:
    """How often the job failed in this life of the child."""
    count = job.get("failed") if isinstance(job, dict) else 0
    return count if isinstance(count, int) else 0
