"""A job that dies: every effect it has on a place or a broker is a step, and it stops before one.

    steps = Steps(after=3)                     # the fourth effect never happens
    storage, api = SteppingDepot(place, steps), SteppingApi(where, steps)
    with pytest.raises(Killed): job(api, storage)

A dead process has no further effect: once it was killed, every step raises. ``at`` does something
else before a step instead, such as deleting the topic under the job's feet.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cordwood.client.storage import DirectoryStorage
from cordwood.decide.archive import BatchSpan
from cordwood.errors import CordwoodError
from cordwood.pipeline.archive.header_runs import FoundRun, look_runs, once
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.tasks import outcome, unavailable
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions

Task = TypeVar("Task")
Result = TypeVar("Result")


class Killed(BaseException):
    """The job's process is gone. Nothing may catch this but a test."""


class Steps:
    """Counts effects; ``after`` so many the process is dead."""

    def __init__(
        self, after: int | None = None, at: Mapping[int, Callable[[], None]] | None = None
    ) -> None:
        self._after = after
        self._at = at or {}
        self.names: list[str] = []
        self.point: str | None = None

    def step(self, name: str) -> None:
        """An effect is about to happen."""
        if self.point is None and len(self.names) == self._after:
            self.point = name
        if self.point is not None:
            raise Killed(f"at {self.point}")
        self.names.append(name)
        if act := self._at.get(len(self.names) - 1):
            act()


class SteppingStorage(DirectoryStorage):
    """A directory whose changes are steps; a write that is not finished leaves its half."""

    def __init__(self, place: Path | str, steps: Steps) -> None:
        super().__init__(str(place))
        self._steps = steps

    def put(self, name: str, source: Any) -> None:
        """A step, or half a file under a temporary name."""
        try:
            self._steps.step(f"put {name}")
        except Killed:
            half = Path(self.place) / f"{name}.{secrets.token_hex(4)}.part"
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(source.read()[:7])
            raise
        super().put(name, source)

    def move(self, old: str, new: str) -> None:
        """A step."""
        self._steps.step(f"move {new}")
        super().move(old, new)

    def remove(self, name: str) -> None:
        """A step."""
        self._steps.step(f"remove {name}")
        super().remove(name)

    def sweep(self, prefix: str, keep: Callable[[str], bool]) -> None:
        """A step."""
        self._steps.step(f"sweep {prefix}")
        super().sweep(prefix, keep)


class SteppingApi(BrokerApi):
    """A broker's API whose changes are steps."""

    def __init__(self, where: BrokerAddress, steps: Steps) -> None:
        super().__init__(where)
        self._steps = steps

    def _ask(self, method: str, path: str, body: Any = None, **params: str) -> dict[str, Any]:
        if method != "GET":
            self._steps.step(f"{method} {path}")
        return super()._ask(method, path, body, **params)


def in_process(
    _spark: object,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    _watch: object = None,
    *,
    label: str | None = None,
) -> list[Result]:
    """What ``pipeline.runtime.tasks.run_tasks`` does, here: tasks die with the job."""
    del label
    results = [outcome(work, task) for task in tasks]
    for result in results:
        if isinstance(result, CordwoodError):
            raise result
    return results


@contextmanager
def looked_in_process(
    _spark: object, options: SourceOptions, ranges: Sequence[Range]
) -> Iterator[Callable[[], Iterator[FoundRun]]]:
    """What ``pipeline.archive.header_runs.looked`` does, here."""
    yield lambda: once(
        (whole.tp, run) for whole in ranges for run in map_errors(look_runs(options, whole))
    )


def map_errors(runs: Iterator[BatchSpan]) -> Iterator[BatchSpan]:
    """The system's errors in a sentence, as those of tasks are."""
    try:
        yield from runs
    except OSError as error:
        raise unavailable(error) from None


@contextmanager
def unlabelled(*_: object) -> Iterator[None]:
    """What ``pipeline.runtime.job_labels.labelled`` does without a session: nothing."""
    yield
