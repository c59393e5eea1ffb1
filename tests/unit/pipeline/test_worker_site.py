"""The sitecustomize module: some Spark workers connect to the JVM before they import libraries."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood.pipeline.worker_site import DIRECTORY, on_search_path, search_path
from cordwood.pipeline.worker_site.sitecustomize import HURRIED, without_zip

pytest.importorskip("pyspark")

SECRET = "known to both"
ASKER = """
import os, sys
import numpy  # as Spark's runner does before it connects
from pyspark.worker_util import get_sock_file_to_executor

with get_sock_file_to_executor(timeout=None) as file:
    file.write(f"{__name__} {sys.argv}\\n".encode())
    file.flush()
    assert file.readline() == b"go on\\n"
"""


@contextmanager
def started(command, tmp_path):
    """Start a worker as Spark does, with the server socket that it connects to."""
    (tmp_path / "asker.py").write_text(ASKER)
    with socket.create_server(("127.0.0.1", 0)) as java:
        environ = {
            **os.environ,
            "PYTHONPATH": search_path(str(tmp_path)),
            "PYTHON_WORKER_FACTORY_PORT": str(java.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": SECRET,
        }
        worker = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE)
        try:
            yield worker, java
        finally:
            worker.kill()
            worker.communicate()


def loaded(worker):
    """Return which of the large libraries the process has loaded."""
    maps = Path(f"/proc/{worker.pid}/maps").read_text()
    return {name for name in ("numpy", "pyarrow") if f"/{name}/" in maps}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what is in memory")
def test_a_worker_connects_before_it_imports_and_pyspark_finds_the_connection(tmp_path):
    """A worker sends its secret before it imports NumPy and Arrow.

    PySpark then uses the open connection.
    """
    command = [sys.executable, "-m", "asker", HURRIED]
    with started(command, tmp_path) as (worker, java):
        connected, _ = java.accept()
        with connected, connected.makefile("rwb") as file:
            (size,) = struct.unpack("!i", file.read(4))
            assert file.read(size).decode() == SECRET
            assert loaded(worker) == set()
            file.write(struct.pack("!i", 2) + b"ok")
            file.flush()
            assert struct.unpack("!i", file.read(4)) == (worker.pid,)
            assert file.readline().startswith(b"__main__ ")
            assert loaded(worker) >= {"numpy"}
            file.write(b"go on\n")
            file.flush()
            assert worker.wait() == 0


def test_a_java_that_does_not_know_the_secret_ends_the_worker(tmp_path):
    """If the JVM rejects the secret, the worker exits."""
    command = [sys.executable, "-m", "asker", HURRIED]
    with started(command, tmp_path) as (worker, java):
        connected, _ = java.accept()
        with connected, connected.makefile("rwb") as file:
            file.read(4 + len(SECRET))
            file.write(struct.pack("!i", 3) + b"err")
            file.flush()
            assert worker.wait() == 1
        assert b"rejected the secret" in worker.stderr.read()


def output_of(*words, path):
    """Return what Python prints with our directory and this path on ``PYTHONPATH``."""
    environ = {**os.environ, "PYTHONPATH": search_path(str(path))}
    done = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_every_other_python_starts_as_ever(tmp_path):
    """Any other Python process connects nowhere, and loads neither our modules nor ``socket``."""
    ask = "import sys; print('cordwood_connect_first' in sys.modules, 'socket' in sys.modules)"
    assert output_of("-c", ask, path=tmp_path) == "False False\n"


def test_the_sitecustomize_that_ours_hides_is_run(tmp_path):
    """Another ``sitecustomize`` on the path is run, too, as Debian and coverage install one."""
    (tmp_path / "sitecustomize.py").write_text("print('theirs', __name__)\n")
    assert output_of("-c", "", path=tmp_path) == "theirs sitecustomize\n"
    assert output_of("-c", "", HURRIED, path=tmp_path) == "theirs sitecustomize\n"


def test_pyspark_is_imported_as_it_is_installed_and_not_from_spark_s_zip(tmp_path):
    """PySpark is imported from its installation, not from Spark's zip.

    Modules in the zip are not compiled, so each worker would compile them again.
    """
    import pyspark

    root = Path(pyspark.__file__).parent
    (archive,) = root.glob("python/lib/pyspark.zip")
    ask = "import pyspark; print(pyspark.__file__)"
    assert output_of("-c", ask, path=archive) == f"{root / '__init__.py'}\n"
    kept = ["/other/pyspark/python/lib/pyspark.zip", "/a/pyspark.zip", str(root.parent)]
    assert without_zip([str(archive), *kept]) == kept


def test_the_search_path_is_ours_for_as_long_as_java_starts(monkeypatch):
    """``PYTHONPATH`` begins with our directory while Java starts, and is restored afterwards."""
    monkeypatch.setenv("PYTHONPATH", f"one:{DIRECTORY}:two")
    with on_search_path():
        assert os.environ["PYTHONPATH"] == f"{DIRECTORY}:one:two"
    assert os.environ["PYTHONPATH"] == f"one:{DIRECTORY}:two"
    monkeypatch.delenv("PYTHONPATH")
    with on_search_path():
        assert os.environ["PYTHONPATH"] == DIRECTORY
    assert "PYTHONPATH" not in os.environ


def test_the_directory_is_printed_for_scripts():
    """``python -m cordwood.pipeline.worker_site`` prints the directory for scripts."""
    command = [sys.executable, "-m", "cordwood.pipeline.worker_site"]
    assert subprocess.check_output(command, text=True) == f"{DIRECTORY}\n"


def test_spark_still_has_the_module_that_is_hurried():
    """The installed Spark has the worker module that connects early."""
    from importlib.util import find_spec

    assert find_spec(HURRIED)
