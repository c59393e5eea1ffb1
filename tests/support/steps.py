"""A job that is killed: each of its effects on a storage or broker is a step, and it stops at one.

    steps = Steps(after=3)                     # the fourth effect never happens
    storage, api = SteppingStorage(place, steps), SteppingApi(where, steps)
    with pytest.raises(Killed): job(api, storage)

A killed process has no further effect: every later step raises too. ``at`` runs a function right
after a step is counted and before its effect, such as one that deletes the topic meanwhile.
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
from cordwood.pipeline.archive.header_runs import PartitionRun, read_runs, without_repeats
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.tasks import outcome, unavailable
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.protocol.api.call import Call

Task = TypeVar("Task")
Result = TypeVar("Result")


class Killed(BaseException):
    """The job's process was killed. Only tests may catch this."""


class Steps:
    """Counts effects; the process is killed after ``after`` of them."""

    def __init__(
        self, after: int | None = None, at: Mapping[int, Callable[[], None]] | None = None
    ) -> None:
        self._after = after
        self._at = at or {}
        self.names: list[str] = []
        self.point: str | None = None

    def step(self, name: str) -> None:
        """Count an effect that is about to happen, or raise ``Killed``."""
        if self.point is None and len(self.names) == self._after:
            self.point = name
        if self.point is not None:
            raise Killed(f"at {self.point}")
        self.names.append(name)
        if act := self._at.get(len(self.names) - 1):
            act()


class SteppingStorage(DirectoryStorage):
    """A directory whose changes are steps; a killed write leaves a partial file."""

    def __init__(self, place: Path | str, steps: Steps) -> None:
        super().__init__(str(place))
        self._steps = steps

    def put(self, name: str, source: Any) -> None:
        """Count a step; if killed, leave a partial file under a temporary name."""
        try:
            self._steps.step(f"put {name}")
        except Killed:
            half = Path(self.place) / f"{name}.{secrets.token_hex(4)}.part"
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(source.read()[:7])
            raise
        super().put(name, source)

    def move(self, old: str, new: str) -> None:
        """Count a step, then move the file."""
        self._steps.step(f"move {new}")
        super().move(old, new)

    def remove(self, name: str) -> None:
        """Count a step, then remove the file."""
        self._steps.step(f"remove {name}")
        super().remove(name)

    def sweep(self, prefix: str, keep: Callable[[str], bool]) -> None:
        """Count a step, then sweep the files."""
        self._steps.step(f"sweep {prefix}")
        super().sweep(prefix, keep)


class SteppingApi(BrokerApi):
    """A broker API whose changing requests are steps."""

    def __init__(self, where: BrokerAddress, steps: Steps) -> None:
        super().__init__(where)
        self._steps = steps

    def call(self, request: Call[Any], data: bytes | None = None) -> Any:
        if request.route[0] != "GET":
            self._steps.step(" ".join(request.route))
        return super().call(request, data)


def in_process(
    _spark: object,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    _watch: object = None,
    *,
    label: str | None = None,
) -> list[Result]:
    """Replace ``pipeline.runtime.tasks.run_tasks``: run the tasks in this process."""
    del label
    results = [outcome(work, task) for task in tasks]
    for result in results:
        if isinstance(result, CordwoodError):
            raise result
    return results


@contextmanager
def scanned_in_process(
    _spark: object, options: SourceOptions, ranges: Sequence[Range]
) -> Iterator[Callable[[], Iterator[PartitionRun]]]:
    """Replace ``pipeline.archive.header_runs.scanned``: scan in this process."""
    yield lambda: without_repeats(
        (whole.tp, run) for whole in ranges for run in map_errors(read_runs(options, whole))
    )


def map_errors(runs: Iterator[BatchSpan]) -> Iterator[BatchSpan]:
    """Convert ``OSError`` to an unavailable error, as tasks do."""
    try:
        yield from runs
    except OSError as error:
        raise unavailable(error) from None


@contextmanager
def unlabelled(*_: object) -> Iterator[None]:
    """Replace ``pipeline.runtime.job_labels.labelled``: do nothing."""
    yield
