"""Why Spark refused or failed, in a sentence for people; pages of Java's stack help nobody."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from cordwood import errors
from cordwood.errors import CordwoodError, UnavailableError

logger = logging.getLogger("cordwood.pipeline")

LATE: Final = (
    "Spark's Python worker did not start in time: the machine is too busy or short of memory; "
    "try again when it is less so"
)
ATTEMPTS: Final = 3  # of a job whose worker came too late
_LATE: Final = re.compile(
    r"Python worker failed to connect back|Timed out while waiting for the Python (worker|daemon)"
)
_NOISE: Final = re.compile(r"^\[[A-Z0-9_.]+\] |\.? SQLSTATE: \w+;?")  # Spark's codes
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_OURS: Final = re.compile(r"^cordwood\.errors\.(\w+): (.*)$")

Result = TypeVar("Result")


def plain_reason(error: BaseException) -> str:
    """Our own reason where a task met one, else the first cause, else what Spark says first."""
    if is_late(error):
        return LATE
    ours = our_error(error)
    if ours is not None:
        return str(ours)
    text = str(error).split("\n== SQL")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = _CAUSE.findall(text)
    first = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return _NOISE.sub("", first).rstrip(";")


def our_error(error: BaseException) -> CordwoodError | None:
    """The error of ours that a task raised, as itself, found in what Spark says of it."""
    if isinstance(error, CordwoodError):
        return error
    text = str(error).split("\n== SQL")[0]
    for line in reversed(text.splitlines()):
        if match := _OURS.match(line.strip()):
            kind = getattr(errors, match[1], None)
            if not isinstance(kind, type) or not issubclass(kind, CordwoodError):
                kind = UnavailableError
            return kind(match[2])
    return None


def is_late(error: BaseException) -> bool:
    """Whether a Python worker took longer to start than Spark waits; no setting of ours helps."""
    return _LATE.search(str(error)) is not None


def failure(error: BaseException) -> CordwoodError:
    """What a command ends with when a Spark job did."""
    ours = our_error(error)
    if ours is not None:
        return ours
    if is_late(error):
        return UnavailableError(LATE)
    return UnavailableError(f"the Spark job failed: {plain_reason(error)}")


def sentence(error: Exception) -> Exception:
    """Spark's error as one of ours; any other error is returned as it is."""
    return failure(error) if is_from_spark(error) else error


def is_from_spark(error: BaseException) -> bool:
    """Whether PySpark or py4j defines the error's class; asked without importing either."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint({"pyspark", "py4j"})


@contextmanager
def told() -> Iterator[None]:
    """Errors of Spark's that the body meets are raised as ours."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised as it is unless it is Spark's
        raise sentence(error) from None


def patiently(job: Callable[[], Result]) -> Result:
    """Run a job that may be run again; it is, when a Python worker came too late for Spark."""
    for attempt in range(1, ATTEMPTS):
        try:
            return job()
        except Exception as error:
            if not is_late(error):
                raise
            logger.warning("spark.worker_late attempt=%d of=%d", attempt, ATTEMPTS)
    return job()
