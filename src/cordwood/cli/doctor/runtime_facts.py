"""The facts about Python, its packages, Spark and the compiled kernels."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

from cordwood.decide.doctor.facts import (
    JavaFacts,
    KernelFacts,
    Package,
    PythonFacts,
    SparkFacts,
)
from cordwood.decide.requirements import is_needed, parse_requirement
from cordwood.extras import install_command

RUNTIME_EXTRAS = frozenset({"", "spark", "connect", "jdk", "s3", "delta"})
KERNEL_FILE = "batches.*.nbi"


def python_facts() -> PythonFacts:
    """Look at the Python that runs this command, and at what is installed in it."""
    return PythonFacts(
        version=tuple(sys.version_info[:3]),
        executable=sys.executable,
        platform=sys.platform,
        is_optimized=bool(sys.flags.optimize),
        packages=tuple(_packages()),
    )


def _packages() -> Iterator[Package]:
    for text in metadata.requires("cordwood") or ():
        needed = parse_requirement(text)
        if needed.name == "cordwood" or needed.extra not in RUNTIME_EXTRAS:
            continue
        if is_needed(needed, tuple(sys.version_info[:2]), sys.platform):
            yield Package(needed.name, needed.bounds, needed.extra, installed_version(needed.name))


def installed_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def spark_facts(*, is_wanted: bool, environ: Mapping[str, str] = os.environ) -> SparkFacts:
    """Look at Spark; where it is not installed, nothing else about it is asked."""
    version = installed_version("pyspark") or installed_version("pyspark-client")
    if version is None or util.find_spec("pyspark") is None:
        return SparkFacts(None, is_wanted, install=install_command("spark"))
    from cordwood.pipeline.runtime import java
    from cordwood.pipeline.runtime.worker_python import check_lookup

    homes = java.find_homes(environ, java.JVM_DIRECTORIES)
    lookup = check_lookup(environ)
    home = environ.get("SPARK_HOME", "")
    return SparkFacts(
        version=version,
        is_wanted=is_wanted,
        home=home,
        home_version=_spark_in(Path(home)) if home else None,
        javas=[_java_facts(home) for home in homes],
        python=lookup.python,
        python_chosen_by=lookup.chosen_by,
        python_problem=lookup.problem,
        python_remedy=lookup.advice,
        install=install_command("spark"),
        install_java=install_command("jdk"),
    )


def _java_facts(home: Path) -> JavaFacts:
    from cordwood.pipeline.runtime.java import read_java

    found = read_java(home)
    return JavaFacts(str(home), found.version if found else None)


def _spark_in(home: Path) -> str | None:
    """The version of the Spark in a directory, by its jars; None if there is none."""
    for jar in sorted(home.glob("jars/spark-core_*.jar")):
        if match := re.search(r"-(\d+\.\d+\.\d+)", jar.name):
            return match[1]
    return None


def kernel_facts(environ: Mapping[str, str] = os.environ) -> KernelFacts:
    """Look at the directories in which numba keeps compiled kernels, in the order it tries them."""
    import cordwood.batch.kernels as package

    beside = Path(next(iter(package.__path__))) / "__pycache__"
    user = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    chosen = environ.get("NUMBA_CACHE_DIR")
    return first_writable([Path(chosen)] if chosen else [beside, user])


def first_writable(directories: Sequence[Path]) -> KernelFacts:
    """The first directory that may be written or created, and whether it has kernels."""
    for directory in directories:
        existing = next(each for each in (directory, *directory.parents) if each.exists())
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            return KernelFacts(str(directory), any(directory.rglob(KERNEL_FILE)))
    return KernelFacts(None, is_compiled=False)
