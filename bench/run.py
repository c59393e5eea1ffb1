"""Finds the benchmarks, runs them one after another, and prints and saves the results.

A benchmark is a module in this directory with ``run() -> Iterable[Row]``. If one fails, it is
reported, the others still run, and the exit code is 1. Numbers are saved with machine and commit in
``results/``, which git ignores; documents refer to them by that name.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.rows import Row

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    """Run the named modules, or all; return 1 if one failed and 2 if one does not exist."""
    known = benchmark_names()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
        return 2
    machine_info = machine()
    print(" · ".join(f"{key} {value}" for key, value in machine_info.items()))
    measured, failed = {}, []
    for name in names or known:
        rows, seconds = measure(name)
        if rows is None:
            failed.append(name)
            continue
        measured[name] = [row._asdict() for row in rows]
        print(f"\n## {name} ({seconds:.0f} s)\n\n{table(rows)}", flush=True)
    if measured:
        print(f"\nkept in {write_results(machine_info, {'rows': measured})}")
    if failed:
        print(f"FAILED: {', '.join(failed)}; the tracebacks are above")
    return 1 if failed else 0


def benchmark_names() -> list[str]:
    """Return the modules that contain ``def run(``; broken ones too, as they are not imported."""
    return sorted(
        path.stem
        for path in HERE.glob("*.py")
        if path.stem != "run" and "\ndef run(" in path.read_text()
    )


def measure(name: str) -> tuple[list[Row] | None, float]:
    """Return rows and seconds; rows are ``None`` if the benchmark failed."""
    started = time.perf_counter()
    try:
        rows = list(importlib.import_module(f"bench.{name}").run())
    except Exception:  # noqa: BLE001 one broken benchmark must not hide the others
        traceback.print_exc()
        return None, 0.0
    return rows, time.perf_counter() - started


def table(rows: Iterable[Row]) -> str:
    """Return a Markdown table that names each workload once for its variants."""
    lines = [["workload", "variant", "value", "unit", "note"]]
    for _, same in groupby(rows, key=lambda row: row.workload):
        for position, row in enumerate(same):
            workload = row.workload if position == 0 else ""
            lines.append([workload, row.variant, human(row.value), row.unit, row.note])
    return aligned(lines)


def aligned(lines: list[list[str]]) -> str:
    """Return a Markdown table with the first line as its head."""
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def human(value: float) -> str:
    """Round to three significant digits: 12,345,678 → 12,300,000; 0.012345 → 0.0123."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def machine() -> dict[str, str]:
    """Return what the numbers depend on, without naming the machine."""
    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": (git("rev-parse", "--short", "HEAD") or "unknown") + dirty,
        "cpu": f"{cpu_model()} x {os.cpu_count()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """Return the processor name that the kernel reports."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return models[0] if models else platform.machine()


def git(*arguments: str) -> str:
    """Return the output of git, or an empty string without git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def write_results(
    machine_info: dict[str, str], measured: dict[str, Any], kind: str = "ours"
) -> Path:
    """Save one run; a later run of the same commit and day replaces it."""
    commit = machine_info["commit"].replace("+", "-dirty")
    path = HERE / "results" / f"{machine_info['date']}-{commit}-{kind}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine_info, **measured}, indent=1) + "\n")
    return path.relative_to(HERE.parent)
