"""A directory for ``PYTHONPATH`` that lets Spark's Python workers start in time.

Python imports ``sitecustomize`` from this directory at startup. Ours calls ``connect_first`` in the
streaming source's worker, which must connect within ten seconds. It also makes every worker import
the installed pyspark instead of a zip file of source code, and then runs the ``sitecustomize`` that
it shadows. Spark starts the streaming source's worker on the driver's machine with the driver's
environment, so this works on a cluster too, and the executors need nothing.

``python -m cordwood.pipeline.worker_site`` prints the directory, for ``spark-submit``, a Spark
Connect server or your own session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DIRECTORY: Final = str(Path(__file__).parent)
_NAME: Final = "PYTHONPATH"


def search_path(before: str | None) -> str:
    """``PYTHONPATH`` with our directory prepended exactly once."""
    others = [each for each in (before or "").split(os.pathsep) if each and each != DIRECTORY]
    return os.pathsep.join([DIRECTORY, *others])


@contextmanager
def on_search_path() -> Iterator[None]:
    """Put our directory on the ``PYTHONPATH`` of all processes that the body starts."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = search_path(before)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NAME, None)
        else:
            os.environ[_NAME] = before
