"""Which Python Spark looks the data source up with, and when an import changes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.pipeline.runtime import session
from cordwood.pipeline.runtime.worker_python import VARIABLES, check_lookup, use_this_python


@pytest.fixture
def other(tmp_path):
    """A directory for PATH whose ``python3`` reports that every module is missing."""
    version = ".".join(map(str, sys.version_info[:2]))
    directory = tmp_path / "bin"
    directory.mkdir()
    script = directory / "python3"
    script.write_text(f'#!/bin/sh\nshift 2\necho {version} "$@"\n')
    script.chmod(0o755)
    return str(directory)


@pytest.fixture
def ours(tmp_path):
    """The same for this environment's own Python, whichever names it has."""
    directory = tmp_path / "ours"
    directory.mkdir()
    for name in ("python", "python3"):
        (directory / name).symlink_to(sys.executable)
    return directory


def test_a_python_that_is_not_on_the_path_is_chosen(other):
    """Spark gets this Python where another python3 comes first on PATH, or none does."""
    for path in (other, "/nowhere"):
        environ = {"PATH": path}
        use_this_python(environ, "/app/.venv/bin/python")
        assert environ == {"PATH": path, "PYSPARK_PYTHON": "/app/.venv/bin/python"}


def test_an_activated_environment_is_left_as_it_is(ours):
    """Nothing is set where python3 on PATH is this environment's: executors have their own."""
    environ = {"PATH": str(ours)}
    use_this_python(environ, str(ours / "python"))
    assert environ == {"PATH": str(ours)}


@pytest.mark.parametrize("name", [*VARIABLES, "PYSPARK_GATEWAY_PORT"])
def test_the_user_s_choice_stands(name, other):
    """A variable that the user has set is not changed, nor anything under spark-submit."""
    environ = {"PATH": other, name: "theirs"}
    use_this_python(environ, "/app/.venv/bin/python")
    assert environ == {"PATH": other, name: "theirs"}


def test_an_embedded_interpreter_has_no_python_to_choose(other):
    """A program without an interpreter of its own, which Python reports as '', sets nothing."""
    environ = {"PATH": other}
    use_this_python(environ, "")
    assert environ == {"PATH": other}


def test_importing_the_spark_module_chooses_this_python(other):
    """``import cordwood.spark`` is enough, and it imports neither pyspark nor numpy."""
    code = (
        "import os, sys, cordwood.spark; print(os.environ['PYSPARK_PYTHON'] == sys.executable, "
        "*{'pyspark', 'numpy'} & sys.modules.keys())"
    )
    environ = {"PATH": other, "PYTHONPATH": str(Path(session.__file__).parents[3])}
    answer = subprocess.check_output([sys.executable, "-c", code], env=environ, text=True)
    assert answer.split() == ["True"]


def test_a_cluster_runs_the_python_that_the_user_chose(monkeypatch):
    """On a cluster the user's variable stands; an embedded Spark always runs this Python."""
    monkeypatch.setattr(session, "java_home", lambda: "/java")
    monkeypatch.setenv("JAVA_HOME", "/java")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv(VARIABLES[0], raising=False)
    monkeypatch.setenv(VARIABLES[1], "/executors/python")
    session._set_environment(embedded=False)
    assert [session.os.environ.get(name) for name in VARIABLES] == [None, "/executors/python"]
    monkeypatch.setenv(VARIABLES[0], "/driver/python")
    session._set_environment(embedded=True)
    assert [session.os.environ.get(name) for name in VARIABLES] == [sys.executable] * 2


def test_the_check_names_the_python_and_what_it_lacks(other):
    """The check reports the python3 on PATH, what is missing there, and what to do."""
    lookup = check_lookup({"PATH": other})
    assert lookup.python == f"{other}/python3"
    assert lookup.problem == f"{other}/python3 does not have pyspark_cordwood or pyarrow"
    assert "import cordwood.spark before" in lookup.advice


def test_the_check_reads_the_variables_in_spark_s_order(other):
    """PYSPARK_DRIVER_PYTHON comes before PYSPARK_PYTHON; the advice names the one that counts."""
    environ = {"PATH": other, "PYSPARK_PYTHON": "python3"}
    assert check_lookup(environ).chosen_by == "PYSPARK_PYTHON"
    lookup = check_lookup(environ | {"PYSPARK_DRIVER_PYTHON": "/nowhere/python"})
    assert lookup.problem == "there is no command /nowhere/python"
    assert lookup.advice.startswith("set PYSPARK_DRIVER_PYTHON to")


def test_the_check_reports_a_python_that_does_not_run(tmp_path):
    """A Python that fails is a problem with its reason, not a traceback."""
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    problem = check_lookup({"PYSPARK_PYTHON": str(broken)}).problem
    assert problem is not None
    assert "does not run" in problem


def test_the_check_reports_a_python_of_another_version(tmp_path):
    """Spark's workers must run the driver's Python version, so another one is a problem."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 3.8\n")
    other.chmod(0o755)
    problem = check_lookup({"PYSPARK_PYTHON": str(other)}).problem
    assert problem is not None
    assert "is Python 3.8, and Spark runs only the driver's version" in problem


def test_the_check_passes_for_a_python_with_cordwood():
    """The Python of this test finds the package that registers the source."""
    pytest.importorskip("pyarrow")
    source = str(Path(session.__file__).parents[3])
    environ = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": source}
    assert check_lookup(environ).problem is None
