"""Turn Spark's errors into one-sentence reasons, without Java stack traces."""

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
    "Spark's Python worker did not start in time: the machine is overloaded or short of memory; "
    "try again later"
)
ATTEMPTS: Final = 3  # for a job whose Python worker started too late
_LATE: Final = re.compile(
    r"Python worker failed to connect back|Timed out while waiting for the Python (worker|daemon)"
)
_NOISE: Final = re.compile(r"^\[[A-Z0-9_.]+\] |\.? SQLSTATE: \w+;?")  # Spark's codes
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_OURS: Final = re.compile(r"^cordwood\.errors\.(\w+): (.*)$")

Result = TypeVar("Result")


def plain_reason(error: BaseException) -> str:
    """The message of our own error if a task raised one, else the root cause, else the first line.

    A Python worker that started too late has its own message.
    """
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
    """The ``CordwoodError`` that a task raised, recovered from the text of Spark's error."""
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
    """Whether a Python worker started later than Spark waits; the timeout cannot be configured."""
    return _LATE.search(str(error)) is not None


def failure(error: BaseException) -> CordwoodError:
    """The error with which a command ends after a Spark job failed."""
    ours = our_error(error)
    if ours is not None:
        return ours
    if is_late(error):
        return UnavailableError(LATE)
    return UnavailableError(f"the Spark job failed: {plain_reason(error)}")


def sentence(error: Exception) -> Exception:
    """Convert an error of Spark to one of ours; returns any other error unchanged."""
    return failure(error) if is_from_spark(error) else error


def is_from_spark(error: BaseException) -> bool:
    """Whether PySpark or py4j defines the error's class; imports neither of them."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint({"pyspark", "py4j"})


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert Spark's errors that the body raises to ours."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised unchanged unless it is Spark's
        raise sentence(error) from None


def patiently(job: Callable[[], Result]) -> Result:
    """Run an idempotent job; repeats it if a Python worker started too late for Spark."""
    for attempt in range(1, ATTEMPTS):
        try:
            return job()
        except Exception as error:
            if not is_late(error):
                raise
            logger.warning("spark.worker_late attempt=%d of=%d", attempt, ATTEMPTS)
    return job()
