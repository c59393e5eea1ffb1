"""Which Python Spark runs to look up ``format("cordwood")``, and whether cordwood is in it.

Spark's Java looks data sources up with ``PYSPARK_DRIVER_PYTHON``, else ``PYSPARK_PYTHON``, else the
first ``python3`` on ``PATH``, and runs the source's tasks with the same command. A program that is
started as ``.venv/bin/python job.py`` has another ``python3`` first unless the environment is
activated, and Spark then fails with ``DATA_SOURCE_NOT_FOUND``. ``import cordwood.spark`` calls
``use_this_python`` to prevent that. ``spark.pyspark.python`` has no effect on such a program; under
``spark-submit``, which reads it, nothing is changed here.

Sets at most one environment variable; never starts Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLES: Final = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")  # in the order Spark reads them
DEFAULT: Final = "python3"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set if Java is already running and started this process
NEEDED: Final = ("pyspark_cordwood", "pyarrow")  # Spark brings pyspark itself
_PROBE: Final = (
    "import sys; from importlib.util import find_spec; print('%d.%d' % sys.version_info[:2], "
    "*[name for name in sys.argv[1:] if find_spec(name) is None])"
)
_PROBE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Lookup:
    """The Python that Spark looks data sources up with, and why it would fail, if it would."""

    python: str
    chosen_by: str  # the environment variable, or PATH
    problem: str | None

    @property
    def advice(self) -> str:
        """What to do so that the lookup succeeds."""
        if self.chosen_by in VARIABLES:
            return (
                f'set {self.chosen_by} to a Python with "cordwood[spark]", such as {sys.executable}'
            )
        return (
            "import cordwood.spark before your program starts its Spark session, or activate the "
            f"environment, or set PYSPARK_PYTHON={sys.executable}"
        )


def use_this_python(
    environ: MutableMapping[str, str] = os.environ, executable: str = sys.executable
) -> None:
    """Make Spark run this Python, unless it would anyway or the user has chosen another.

    Where the first ``python3`` on ``PATH`` is this environment's, it stays so: on a cluster the
    executors' own ``python3`` may be in another directory.
    """
    if not executable or environ.get(SUBMITTED) or any(environ.get(name) for name in VARIABLES):
        return
    found = shutil.which(DEFAULT, path=environ.get("PATH", os.defpath))
    if found is None or Path(found).parent.resolve() != Path(executable).parent.resolve():
        environ["PYSPARK_PYTHON"] = executable


def check_lookup(environ: Mapping[str, str] = os.environ) -> Lookup:
    """Ask the Python that Spark would run in this environment whether it finds cordwood."""
    chosen_by = next((name for name in VARIABLES if environ.get(name)), "PATH")
    command = environ.get(chosen_by, "") if chosen_by in VARIABLES else DEFAULT
    python = shutil.which(command, path=environ.get("PATH", os.defpath))
    if python is None:
        return Lookup(command, chosen_by, f"there is no command {command}")
    return Lookup(python, chosen_by, _problem(python, environ))


def _problem(python: str, environ: Mapping[str, str]) -> str | None:
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE, *NEEDED],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{python} does not run: {error}"
    version, *missing = answer.stdout.split()
    if missing:
        return f"{python} does not have {' or '.join(missing)}"
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != ours:
        return f"{python} is Python {version}, and Spark runs only the driver's version ({ours})"
    return None
