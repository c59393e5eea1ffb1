"""``python -m bench peers [--quick] [--before PYTHON] [--publish] [name …]``: run and report."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import asdict
from typing import Any

from bench import run as ours
from bench.peers import plan, report
from bench.peers.contestants import CONTESTANTS, Cordwood, before
from bench.peers.measure import FULL, QUICK
from bench.peers.results import LESS, MORE, TITLES, Result
from bench.rows import Row

LESS_IS_BETTER = {"ms", "s", "µs", "MiB", "MB"}


def main(arguments: list[str]) -> int:
    asked = parsed(arguments)
    beside_names = [name for name in ours.benchmark_names() if name not in TITLES]
    known = [*TITLES, *beside_names]
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        print(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    names = asked.names or list(TITLES)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(2**32)
    machine_info = ours.machine()
    print(" · ".join(f"{key} {value}" for key, value in machine_info.items()))
    scale = QUICK if asked.quick else FULL
    scale = scale._replace(rounds=asked.rounds or scale.rounds)
    print(f"seed {seed} · {scale.rounds} round(s), order shuffled · {', '.join(names)}", flush=True)
    began = time.perf_counter()
    kinds = (Cordwood, before(asked.before)) if asked.before else CONTESTANTS
    done = plan.run([name for name in names if name in TITLES], scale, seed, kinds)
    beside(done, [name for name in names if name in beside_names])
    print(shown(done, is_before=bool(asked.before)))
    kept = {"seconds": round(time.perf_counter() - began), **document(done)}
    print(f"\nkept in {ours.write_results(machine_info, kept, 'peers')}")
    if asked.publish:
        from bench import publish

        print("\n".join(publish.publish(machine_info, kept)))
    if done.failed:
        print(f"FAILED: {'; '.join(done.failed)}; the tracebacks are above")
    return 1 if done.failed else 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="workloads, or modules of bench/ that compare")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--rounds", type=int, help="visits to each server; the default is three")
    parser.add_argument("--seed", type=int, help="repeat the order of an earlier run")
    parser.add_argument(
        "--before",
        metavar="PYTHON",
        help="compare only with the cordwood of this Python, such as an older checkout's .venv",
    )
    parser.add_argument("--publish", action="store_true", help="keep it for docs/benchmarks.md")
    return parser.parse_args(arguments)


def beside(done: plan.Run, names: list[str]) -> None:
    """Run our own benchmarks that include a peer's number, as often as the other workloads."""
    for number in range(done.scale.rounds):
        for name in names:
            rows, seconds = ours.measure(name)
            print(f"{name}, round {number + 1}: {seconds:.0f} s", flush=True)
            if rows is None:
                done.failed.append(f"{name}, round {number + 1}")
            for row in rows or ():
                found = as_result(name, row)
                done.results.setdefault(found.key, found).values.append(row.value)


def as_result(name: str, row: Row) -> Result:
    better = LESS if row.unit in LESS_IS_BETTER else MORE
    return Result(name, row.workload, row.variant, "", row.unit, better, row.note)


def document(done: plan.Run) -> dict[str, Any]:
    """Return the part of a run that is saved."""
    return {
        "seed": done.seed,
        "rounds": done.scale.rounds,
        "contestants": done.contestants,
        "skipped": done.skipped,
        "failed": done.failed,
        "results": [asdict(result) for result in done.results.values()],
    }


def shown(done: plan.Run, *, is_before: bool = False) -> str:
    """Return the report of a run for the terminal."""
    skipped = [f"SKIPPED {name}: {reason}" for name, reason in done.skipped.items()]
    parts = [
        "",
        report.settings(done.contestants),
        *skipped,
        "",
        report.tables(done.results),
        *([] if is_before else ["### Targets\n", report.target_table(done.results)]),
        "\n### Where we lose, at equal durability\n",
        report.loss_table(done.results),
    ]
    return "\n".join(parts)
