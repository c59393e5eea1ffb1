"""Build the wheel once and try it in a fresh environment of every Python that is found.

    python scripts/wheel_test.py [PYTHON...]

Looks for Python 3.11 to 3.14 on PATH and in pyenv, and at those that are named. What is not found
is skipped, and the end of the output says so. Exits 1 if the wheel fails on one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "scripts" / "wheel_smoke.py"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this clone."""
    pip("wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    (wheel,) = directory.glob("cordwood-*.whl")
    return wheel


def pip(*words: str, python: str = sys.executable) -> None:
    """Run pip; raises ``CalledProcessError`` if it fails."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    subprocess.run([python, "-m", "pip", *words, *quiet], check=True)


def find_pythons(named: list[str]) -> dict[str, str]:
    """The first interpreter of each version that runs."""
    found: dict[str, str] = {}
    for python in (*named, *candidates()):
        version = version_of(python)
        if version in VERSIONS:
            found.setdefault(version, python)
    return found


def candidates() -> Iterator[str]:
    """Interpreters that may be there: on PATH, and in pyenv, whose names on PATH may not run."""
    for version in VERSIONS:
        if path := shutil.which(f"python{version}"):
            yield path
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for version in VERSIONS:
        yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True))
    yield sys.executable


def version_of(python: str) -> str | None:
    """The version of an interpreter; None if it does not run."""
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def try_wheel(python: str, wheel: Path, directory: Path) -> bool:
    """Install the wheel in a fresh environment and use it; whether that worked."""
    fresh = str(directory / "bin" / "python")
    try:
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
        pip("install", str(wheel), python=fresh)
        subprocess.run([fresh, "-I", str(SMOKE)], check=True, cwd=directory)
    except subprocess.CalledProcessError as error:
        print(f"  {error}")
        return False
    return True


def main() -> int:
    """Try every version, and say at the end which were not tried."""
    pythons = find_pythons(sys.argv[1:])
    results = {}
    with tempfile.TemporaryDirectory(prefix="cordwood-wheel-") as name:
        wheel = build_wheel(Path(name))
        for version, python in pythons.items():
            print(f"Python {version}: {wheel.name} with {python}", flush=True)
            results[version] = try_wheel(python, wheel, Path(name) / version)
    for version in VERSIONS:
        if version not in results:
            print(f"Python {version}: SKIPPED, NOT TESTED: there is no python{version} on PATH")
        else:
            print(f"Python {version}: {'passed' if results[version] else 'FAILED'}")
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
