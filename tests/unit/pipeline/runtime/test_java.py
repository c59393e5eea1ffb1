"""Which Java is used for Spark, and the wrapper script for one without the vector module."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cordwood.errors import ConfigError
from cordwood.pipeline.runtime import java

WHOLE = 'JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector java.sql"\n'
SHORT = 'JAVA_VERSION="25.0.2"\nMODULES="java.base java.sql"\n'


def install(home: Path, release: str | None, script: str = "exit 1") -> Path:
    """Create a fake Java home. Its ``bin/java`` is a shell script."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a machine without Java."""
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    return {"PATH": str(tmp_path / "none"), "HOME": str(tmp_path)}


def test_java_home_of_the_environment_wins(bare: dict[str, str], tmp_path: Path):
    """``JAVA_HOME`` takes precedence over installed Javas."""
    install(tmp_path / "jvm" / "java-21", WHOLE)
    chosen = install(tmp_path / "mine", WHOLE)
    assert java.java_home({**bare, "JAVA_HOME": str(chosen)}, [str(tmp_path / "jvm")]) == chosen
    assert java.java_home(bare, [str(tmp_path / "jvm")]) == tmp_path / "jvm" / "java-21"


def test_java_on_the_path_is_followed_to_its_home(bare: dict[str, str], tmp_path: Path):
    """Symbolic links to ``java`` on the ``PATH`` are resolved to its home."""
    home = install(tmp_path / "real", WHOLE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.java_home({**bare, "PATH": str(tmp_path / "bin")}, [str(tmp_path / "jvm")]) == home


def test_old_java_is_passed_over(bare: dict[str, str], tmp_path: Path):
    """A Java that is too old is skipped, even if ``JAVA_HOME`` names it."""
    old = install(tmp_path / "old", WHOLE.replace("17.0.1", "1.8.0_402"))
    new = install(tmp_path / "jvm" / "new", WHOLE)
    assert java.java_home({**bare, "JAVA_HOME": str(old)}, [str(tmp_path / "jvm")]) == new


def test_no_java_is_one_sentence_with_remedies(bare: dict[str, str], tmp_path: Path):
    """Without a suitable Java, the error names those that were skipped and three ways to fix it."""
    old = install(tmp_path / "old", WHOLE.replace("17.0.1", "11.0.2"))
    with pytest.raises(ConfigError) as refusal:
        java.java_home({**bare, "JAVA_HOME": str(old)}, [str(tmp_path / "jvm")])
    for word in ("Java 17", f"{old} (Java 11)", "cordwood[jdk]", "openjdk-17", "JAVA_HOME"):
        assert word in str(refusal.value)


def test_java_without_a_release_file_is_asked(bare: dict[str, str], tmp_path: Path):
    """Without a release file, the version comes from ``java -version``, which prints to stderr."""
    output = 'echo openjdk version \\"21.0.1\\" 2023-10-17 >&2'
    home = install(tmp_path / "jvm" / "plain", None, output)
    assert java.read_java(home) == java.Java(home, 21, has_vector=True)


def test_java_that_does_not_run_is_none(tmp_path: Path):
    """A Java that does not run is skipped without a traceback."""
    assert java.read_java(install(tmp_path / "broken", None, "exit 1")) is None


def test_short_image_runs_behind_a_shim_without_the_one_argument(
    bare: dict[str, str], tmp_path: Path
):
    """A Java without the vector module runs behind a wrapper that drops the argument for it.

    The other arguments and the exit code are passed through unchanged.
    """
    echo = "printf '%s\\n' \"$@\"; exit 7"
    real = install(tmp_path / "it's short", SHORT, echo)
    home = java.java_home({**bare, "JAVA_HOME": str(real)}, [str(tmp_path / "jvm")])
    assert home != real
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "Main"]
    run = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=False
    )
    assert run.stdout.split("\n")[:-1] == ["-Da=b c", "", "--add-modules=x", "Main"]
    assert run.returncode == 7


def test_shim_is_made_once_and_mended_when_changed(bare: dict[str, str], tmp_path: Path):
    """The wrapper is written once, and is replaced only if its content has changed."""
    real = install(tmp_path / "short", SHORT)
    shim = java.write_shim(real, tmp_path / "cache") / "bin" / "java"
    first = shim.stat().st_mtime_ns, shim.stat().st_ino
    assert java.write_shim(real, tmp_path / "cache") == shim.parent.parent
    assert (shim.stat().st_mtime_ns, shim.stat().st_ino) == first
    shim.write_text("damaged")
    java.write_shim(real, tmp_path / "cache")
    assert shim.read_text() == java.shim_text(real)
    assert os.access(shim, os.X_OK)
    assert list(shim.parent.iterdir()) == [shim]


def test_cache_that_cannot_be_written_names_the_way_out(tmp_path: Path):
    """If the cache directory cannot be written, the error names ``XDG_CACHE_HOME``."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        java.write_shim(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('JAVA_VERSION="17.0.15"', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ("nothing", None),
    ],
)
def test_version_is_read_from_either_form(text: str, version: int | None):
    """The version is parsed from the release file and from ``java -version``; 1.8 is 8."""
    assert java.parse_version(text) == version
