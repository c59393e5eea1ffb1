"""A directory for ``PYTHONPATH`` that lets Spark's Python workers start in time.

Python imports ``sitecustomize`` from there when it starts. Ours calls ``connect_first`` in the one
worker that Spark gives ten seconds, has every worker import pyspark as it is installed and not from
a zip file of source code, and runs the ``sitecustomize`` that it hides. Spark starts that worker on
the driver's machine with the driver's environment, so this works on a cluster too, and nothing has
to be there on the executors.

``python -m cordwood.pipeline.worker_site`` prints the directory, for a ``spark-submit``, a Spark
Connect server or a session of your own.
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
    """``PYTHONPATH`` with our directory in front of what it was, once."""
    others = [each for each in (before or "").split(os.pathsep) if each and each != DIRECTORY]
    return os.pathsep.join([DIRECTORY, *others])


@contextmanager
def on_search_path() -> Iterator[None]:
    """What is started in the body, and whatever that starts, has our directory."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = search_path(before)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NAME, None)
        else:
            os.environ[_NAME] = before
