"""Use an installed cordwood as a user would: every module, the command, a broker, a client.

Run by the Python that has it, outside of the clone (``scripts/wheel_test.py``). Without Spark the
modules that need it are left out; ``--no-kernels`` leaves out those that are compiled on import.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import cordwood
from cordwood.testing import Broker

TEXT_FILES = ("py.typed", "cli/templates/cordwood.service", "cli/templates/grafana.json")


def import_all() -> int:
    """Import every module; those of Spark only where it is installed."""
    spark = importlib.util.find_spec("pyspark") is not None
    skipped = ("cordwood.batch.kernels.",) if "--no-kernels" in sys.argv else ()
    count = 0
    for module in pkgutil.walk_packages(cordwood.__path__, "cordwood."):
        is_sparks = module.name.startswith(("cordwood.pipeline.", "cordwood.testing_plugin"))
        if (is_sparks and not spark) or module.name.startswith(skipped):
            continue
        if module.name.endswith(("__main__", "sitecustomize")):  # programs, not modules
            continue
        importlib.import_module(module.name)
        count += 1
    return count


def run(*words: str, stdin: str = "") -> str:
    """Run ``cordwood WORDS`` and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "cordwood", *words],
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> None:
    """Do it all; an exception is the report."""
    home = Path(cordwood.__file__).parent
    assert not [name for name in TEXT_FILES if not (home / name).is_file()]
    assert importlib.util.find_spec("pyspark_cordwood") is not None
    count = import_all()
    assert run("--version").split()[0] == "cordwood"
    assert "[Service]" in run("generate", "systemd")
    off = [
        word for name in ("kafka", "ingress", "control", "http") for word in ("-c", f"{name}=off")
    ]
    checks = json.loads(run("doctor", *off, "-J"))
    assert "packages" in [check["check"] for check in checks], checks
    with Broker() as broker:
        run("produce", "hello", "-K:", "-b", broker.kafka, stdin="a:1\nb:2\n")
        printed = run("consume", "hello", "-e", "-f", "%k=%v ", "-b", broker.kafka)
    assert printed == "a=1 b=2 ", printed
    print(f"  {count} modules, the command, a broker and a client: ok ({home})")


if __name__ == "__main__":
    main()
