"""What Python, its packages, Spark and the compiled kernels mean for a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cordwood.decide.doctor.check_results import CheckResult, ok, problem, warning
from cordwood.decide.doctor.facts import KernelFacts, Package, PythonFacts, SparkFacts
from cordwood.decide.requirements import compare_releases, is_satisfied, parse_release
from cordwood.plural import plural

PYTHON_MIN: Final = (3, 11)
JAVA_MIN: Final = 17
JAVA_TESTED: Final = 25  # the newest that Spark's documentation names


def check_python(python: PythonFacts) -> Iterator[CheckResult]:
    """The version, the platform, and that assertions run."""
    text = ".".join(map(str, python.version))
    if compare_releases(python.version, PYTHON_MIN) < 0:
        yield problem("python", f"Python {text}", "install Python 3.11 or newer")
    else:
        yield ok("python", f"{text} at {python.executable}")
    if python.platform != "linux":
        yield problem("platform", python.platform, "run the broker on Linux")
    if python.is_optimized:
        yield warning(
            "assertions",
            "Python removes assertions (-O or PYTHONOPTIMIZE), which stop a broker before it "
            "writes something wrong",
            "start it without -O and without PYTHONOPTIMIZE",
        )


def check_packages(packages: Sequence[Package], executable: str) -> Iterator[CheckResult]:
    """Every package of the core is there, and none that is there has an unsuitable version."""
    wrong = [each for each in packages if not _fits(each)]
    for package in wrong:
        found = f"{package.installed} is installed" if package.installed else "it is missing"
        yield problem(
            f"package {package.name}",
            f"{found}; cordwood{f'[{package.extra}]' if package.extra else ''} needs "
            f"{package.bounds or 'any version'}",
            f"{executable} -m pip install '{package.name}{package.bounds}'",
        )
    if not wrong:
        extras = sorted({each.extra for each in packages if each.extra and each.installed})
        count = len({each.name for each in packages if each.installed})
        yield ok(
            "packages",
            f"the versions of {plural(count, 'package')} fit; of extras: "
            f"{', '.join(extras) or 'none'}",
        )


def _fits(package: Package) -> bool:
    if package.installed is None:
        return bool(package.extra)  # an extra is a choice
    return is_satisfied(package.installed, package.bounds)


def check_spark(spark: SparkFacts) -> Iterator[CheckResult]:
    """Spark, the Java it runs on and the Python it runs."""
    if spark.version is None:
        if spark.is_wanted:
            yield warning(
                "spark",
                "not installed: the broker serves, but nothing is routed or compacted",
                f"{spark.install}; or set pipeline=off where that is intended",
            )
        else:
            yield ok("spark", "not installed, and pipeline=off")
        return
    yield _spark_version(spark, spark.version)
    yield _java(spark)
    yield _spark_python(spark)


def _spark_version(spark: SparkFacts, version: str) -> CheckResult:
    if not spark.home:
        return ok("spark", version)
    if spark.home_version is None:
        return problem(
            "spark", f"SPARK_HOME is {spark.home}, where there is no Spark", "unset SPARK_HOME"
        )
    found = f"pyspark {version}, SPARK_HOME has {spark.home_version} ({spark.home})"
    if parse_release(spark.home_version)[:2] == parse_release(version)[:2]:
        return ok("spark", found)
    return problem("spark", found, "unset SPARK_HOME, or set it to a Spark of the same version")


def _java(spark: SparkFacts) -> CheckResult:
    usable = [java for java in spark.javas if java.version and java.version >= JAVA_MIN]
    if not usable:
        seen = ", ".join(
            f"{java.home} ({f'Java {java.version}' if java.version else 'does not run'})"
            for java in spark.javas
        )
        return problem(
            "java",
            f"no Java {JAVA_MIN} or newer{f'; found {seen}' if seen else ''}",
            f"{spark.install_java}; or install openjdk-17-jre-headless, or set JAVA_HOME",
        )
    version, home = usable[0].version or 0, usable[0].home
    if version > JAVA_TESTED:
        return warning(
            "java",
            f"Java {version} in {home} is newer than Spark is tested with",
            "set JAVA_HOME to a Java 17, 21 or 25",
        )
    return ok("java", f"Java {version} in {home}")


def _spark_python(spark: SparkFacts) -> CheckResult:
    if spark.python_problem is None:
        return ok("spark python", f"{spark.python} (by {spark.python_chosen_by})")
    about = f'{spark.python_problem}: format("cordwood") fails with DATA_SOURCE_NOT_FOUND'
    if spark.python_chosen_by == "PATH":  # import cordwood.spark sets it right
        about += " in a program that does not import cordwood.spark"
        return warning("spark python", about, spark.python_remedy)
    return problem("spark python", about, spark.python_remedy)


def check_kernels(kernels: KernelFacts) -> CheckResult:
    """Compiled kernels are kept somewhere, so that the next start is quick."""
    if kernels.directory is None:
        return warning(
            "kernels",
            "numba may write nowhere, so they are compiled again after each start",
            "set NUMBA_CACHE_DIR to a directory that the broker may write",
        )
    if not kernels.is_compiled:
        return ok("kernels", f"compiled at the first traffic, then kept in {kernels.directory}")
    return ok("kernels", f"compiled, in {kernels.directory}")
