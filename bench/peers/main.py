"""``python -m bench peers [--quick] [--seed N] [--publish] [name …]``: run, print, keep."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import asdict
from typing import Any

from bench import run as ours
from bench.peers import plan, report
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
    facts = ours.machine()
    print(" · ".join(f"{key} {value}" for key, value in facts.items()))
    scale = QUICK if asked.quick else FULL
    scale = scale._replace(rounds=asked.rounds or scale.rounds)
    print(f"seed {seed} · {scale.rounds} round(s), order shuffled · {', '.join(names)}", flush=True)
    began = time.perf_counter()
    done = plan.run([name for name in names if name in TITLES], scale, seed)
    beside(done, [name for name in names if name in beside_names])
    print(shown(done))
    kept = {"seconds": round(time.perf_counter() - began), **document(done)}
    print(f"\nkept in {ours.write_results(facts, kept, 'peers')}")
    if asked.publish:
        from bench import publish

        print("\n".join(publish.publish(facts, kept)))
    if done.failed:
        print(f"FAILED: {'; '.join(done.failed)}; the tracebacks are above")
    return 1 if done.failed else 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="workloads, or modules of bench/ that compare")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--rounds", type=int, help="visits to each server; three when not said")
    parser.add_argument("--seed", type=int, help="repeat the order of an earlier run")
    parser.add_argument("--publish", action="store_true", help="keep it for docs/benchmarks.md")
    return parser.parse_args(arguments)


def beside(done: plan.Run, names: list[str]) -> None:
    """Benchmarks of our own that hold a peer's figure too: as often as the others, in turns."""
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
    """What is kept of a run."""
    return {
        "seed": done.seed,
        "rounds": done.scale.rounds,
        "contestants": done.contestants,
        "skipped": done.skipped,
        "failed": done.failed,
        "results": [asdict(result) for result in done.results.values()],
    }


def shown(done: plan.Run) -> str:
    """The report of a run on the terminal."""
    skipped = [f"SKIPPED {name}: {reason}" for name, reason in done.skipped.items()]
    parts = [
        "",
        report.settings(done.contestants),
        *skipped,
        "",
        report.tables(done.results),
        "### Targets\n",
        report.target_table(done.results),
        "\n### Where we lose, at equal durability\n",
        report.loss_table(done.results),
    ]
    return "\n".join(parts)
