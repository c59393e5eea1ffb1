"""Generates docs/benchmarks.md from the runs in ``bench/published``; no number is typed by hand.

``python -m bench peers --publish [name …]`` writes one file for each workload it ran, draws the
charts and updates the page; workloads it did not run keep their files. Each file names its own
machine, commit and seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from bench import chart
from bench.peers import report
from bench.peers.results import TITLES, Result, by_key
from bench.run import aligned, human

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "bench" / "published"
GUARD = ROOT / "bench" / "guard.json"
PICTURES = ROOT / "docs" / "benchmarks"
DRAWN = {  # workload → the cases with a chart
    "lines": ["acknowledged, 20,000 under way", "streamed, no acknowledgement"],
    "kafka": [
        "produce 100 B, acks=all, none",
        "produce 1024 B, acks=all, none",
        "fetch 100 B, hot",
        "prepared produce, 100 B, batches of 1,000",
        "prepared fetch, 1 MiB a request",
    ],
    "clients": ["64 clients", "200 clients"],
    "latency": ["plain socket, p50", "plain socket, p99"],
}


def publish(machine_info: dict[str, str], kept: dict[str, Any]) -> list[str]:
    """Save a run for the page and return what was written."""
    if kept["failed"]:
        return [f"NOT PUBLISHED: {'; '.join(kept['failed'])} failed"]
    PUBLISHED.mkdir(exist_ok=True)
    about = {"machine": machine_info} | {
        name: kept[name] for name in ("seed", "rounds", "contestants")
    }
    messages = []
    for workload, results in groupby(
        sorted(kept["results"], key=lambda row: row["workload"]), key=lambda row: row["workload"]
    ):
        path = PUBLISHED / f"{workload}.json"
        whole = {**about, "skipped": kept["skipped"], "results": [compact(row) for row in results]}
        path.write_text(json.dumps(whole, indent=1) + "\n")
        messages.append(f"published: {path.relative_to(ROOT)}")
    write_pictures()
    subprocess.run([sys.executable, ROOT / "scripts" / "docs.py"], check=True)
    return messages


def compact(row: dict[str, Any]) -> dict[str, Any]:
    """Round values to five digits, which is more than a benchmark's precision."""
    return {**row, "values": [float(f"{value:.5g}") for value in row["values"]]}


def documents() -> dict[str, dict[str, Any]]:
    """Return every published file by its workload."""
    order = [*TITLES]
    paths = sorted(PUBLISHED.glob("*.json"), key=lambda path: (path.stem not in order, path.stem))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def results_of(found: Iterable[dict[str, Any]]) -> list[Result]:
    return [Result(**row) for each in found for row in each["results"]]


# --- the page ---------------------------------------------------------------------------------


def runs_table() -> str:
    """Return a table with the source of each workload's numbers."""
    lines = [["workload", "date", "commit", "machine", "load before", "rounds", "seed", "raw"]]
    for name, found in documents().items():
        machine_info = found["machine"]
        machine = (
            f"{machine_info['cpu']}, {machine_info['system']}, Python {machine_info['python']}"
        )
        raw = f"[{name}.json](../bench/published/{name}.json)"
        run = [str(found["rounds"]), str(found["seed"])]
        lines.append(
            [
                name,
                machine_info["date"],
                machine_info["commit"],
                machine,
                machine_info["load"],
                *run,
                raw,
            ]
        )
    return aligned(lines) + "\n"


def contestants_table() -> str:
    """Return a table of the servers with their durability settings, and the skipped ones."""
    found = documents().values()
    rows = {tuple(row.items()): row for each in found for row in each["contestants"]}
    skipped = {
        f"- {name} was skipped: {why}\n" for each in found for name, why in each["skipped"].items()
    }
    return report.settings(rows.values()) + "\n" + "".join(sorted(skipped))


def targets_table() -> str:
    return report.target_table(by_key(results_of(documents().values()))) + "\n"


def losses_table() -> str:
    return report.loss_table(by_key(results_of(documents().values()))) + "\n"


def all_tables() -> str:
    """Return a table for each workload, with its chart if there is one."""
    parts = []
    for name, found in documents().items():
        results = results_of([found])
        title = TITLES.get(name, name)
        picture = f"![{title}](benchmarks/{name}.svg)\n\n" if name in DRAWN else ""
        parts.append(f"### {title}\n\n{picture}{report.table(results, by_key(results))}\n")
    return "\n".join(parts)


def instructions_table() -> str:
    """Return the cost of one request of each kind, as the guard counts it."""
    counted = json.loads(GUARD.read_text())["instructions"]
    lines = [["request", "instructions"]]
    return aligned(lines + [[path, f"{count:,.0f}"] for path, count in counted.items()]) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "benchmark-runs": runs_table,
    "benchmark-contestants": contestants_table,
    "benchmark-targets": targets_table,
    "benchmark-losses": losses_table,
    "benchmark-tables": all_tables,
    "benchmark-instructions": instructions_table,
}


# --- the charts -------------------------------------------------------------------------------


def pictures() -> Iterator[tuple[Path, str]]:
    """Yield every chart with its path."""
    for name, found in documents().items():
        if name in DRAWN:
            panels = [panel(case, results_of([found])) for case in DRAWN[name]]
            drawn = [each for each in panels if each.bars]  # a quick run has other sizes
            yield PICTURES / f"{name}.svg", chart.draw(TITLES[name], drawn)


def panel(case: str, results: list[Result]) -> chart.Panel:
    rows = [row for row in results if row.case == case]
    rows.sort(key=lambda row: (row.level != "synced", not report.is_ours(row), row.contestant))
    bars = [
        chart.Bar(
            f"{row.contestant}, {row.level}",
            row.median,
            min(row.values),
            max(row.values),
            f"{human(row.median)} {row.unit}",
            report.is_ours(row),
        )
        for row in rows
    ]
    return chart.Panel(case, bars)


def write_pictures() -> None:
    PICTURES.mkdir(exist_ok=True)
    for path, text in pictures():
        path.write_text(text)
