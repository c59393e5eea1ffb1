"""Installs missing peers from Debian and Maven if that is allowed, or gives the reason.

Jars are kept in ``.venv/peers``: git ignores it and ``make clean`` removes it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {  # command → Debian package
    "redis-server": "redis-server",
    "nats-server": "nats-server",
    "socat": "socat",
    "gawk": "gawk",
    "kcat": "kcat",
    "java": "openjdk-17-jre-headless",
    "mvn": "maven",
}
KAFKA_VERSION = "3.9.1"
INSTALL_S = 600


class Missing(Exception):
    """A peer that is not available here; the message is the reason."""


def output(*command: str) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Missing(f"`{' '.join(command[:3])} …` failed: {' '.join(last)}")
    return done.stdout


@functools.cache
def command(name: str) -> str:
    """Return the path of a command; install it from Debian if it is missing and we may."""
    return find(name) or _installed(name)


def find(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(name, path=path)


def _installed(name: str) -> str:
    package = PACKAGES[name]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(
            f"{name} is not installed, and only root on Debian may: apt install {package}"
        )
    print(f"installing {package} with apt-get", file=sys.stderr, flush=True)
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", package)
    try:
        _apt(*install)
    except Missing:
        _apt("apt-get", "update", "-q")
        _apt(*install)
    found = find(name)
    if found is None:
        raise Missing(f"the package {package} brought no {name}")
    return found


def _apt(*words: str) -> None:
    # Packages start their service by default; here only the benchmark starts them.
    quiet = ("env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", *words)
    output(*quiet)


@functools.cache
def java() -> str:
    """Return a Java of version 17 or newer: the installed one, or Debian's."""
    found = find("java")
    return found or command("java")


@functools.cache
def kafka_jars() -> Path:
    """Return the directory of Apache Kafka's jars; Maven fetches them once."""
    given = os.environ.get("CORDWOOD_KAFKA_JARS")
    directory = Path(given) if given else ROOT / ".venv" / "peers" / f"kafka-{KAFKA_VERSION}"
    if not list(directory.glob("kafka_2.13-*.jar")):
        java()
        command("mvn")
        print(f"fetching Apache Kafka {KAFKA_VERSION} with Maven", file=sys.stderr, flush=True)
        output(str(ROOT / "scripts" / "kafka_jars.sh"), str(directory), KAFKA_VERSION)
    return directory
