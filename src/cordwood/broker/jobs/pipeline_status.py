"""Status of the pipeline that the broker starts, for health, metrics and the API.

The pipeline's supervisor fills it in; the broker works without it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cordwood.protocol.api.status import PipelineReport

NOT_OURS = (
    "this broker runs no pipeline, so compacted topics are compacted only while `cordwood pipeline "
    "run` runs elsewhere; start the broker without --no-pipeline, or use `cordwood compact TOPIC "
    "--now`"
)


class PipelineState(StrEnum):
    """Lifecycle state of the embedded pipeline."""

    OFF = "off"  # not wanted, or run elsewhere
    MISSING = "missing"  # Spark or Java is not installed
    STARTING = "starting"
    UP = "up"
    WAITING = "waiting"  # it died and will be restarted after a pause


@dataclass(slots=True)
class PipelineStatus:
    """The current state of the embedded pipeline."""

    state: PipelineState = PipelineState.OFF
    detail: str = ""
    restarts: int = 0
    pid: int | None = None
    is_wanted: bool = False  # it is supervised, so it should be up
    jobs: dict[str, Any] = field(default_factory=dict)
    job_failures: Counter[str] = field(default_factory=Counter)  # over all restarts of the child

    def take_report(self, jobs: dict[str, Any]) -> None:
        """Store the child's report on its jobs; malformed entries are tolerated."""
        for name, job in jobs.items():
            failed, before = _failures(job), _failures(self.jobs.get(name))
            self.job_failures[name] += max(0, failed - before)
        self.jobs = jobs

    def failed_jobs(self) -> dict[str, str]:
        """Return the jobs that are down, with their last error; the child itself if it died."""
        if self.state is PipelineState.WAITING:
            return {"pipeline": self.detail}
        return {
            name: str(job["error"])
            for name, job in self.jobs.items()
            if isinstance(job, dict) and job.get("error") and not job.get("open")
        }

    def is_job_up(self, name: str) -> bool:
        """Return whether a job runs, or its last run succeeded; False while the child is not up."""
        return self.state is PipelineState.UP and name not in self.failed_jobs()

    def report(self) -> PipelineReport:
        """Return the status as the HTTP API shows it."""
        return PipelineReport(
            self.state.value,
            self.detail,
            self.restarts,
            self.pid,
            self.jobs,
            dict(self.job_failures),
            self.why_not_compacting(),
        )

    def why_not_compacting(self) -> str:
        """Return why compacted topics are not compacted, and the remedy; empty if they are."""
        if self.state is PipelineState.MISSING:
            return f"compacted topics are not compacted and grow without bound: {self.detail}"
        if self.state is PipelineState.OFF:
            return NOT_OURS
        return ""


def _failures(job: Any) -> int:
    """Return how often the job failed since the child process started."""
    count = job.get("failed") if isinstance(job, dict) else 0
    return count if isinstance(count, int) else 0
