"""Detects slow growth of costs, also on noisy machines: nothing here depends on wall time.

It compares two kinds of cost with those in ``guard.json``:

- *instructions*: bytecode instructions of our own code per request, counted (``bench.opcodes``).
  They are the same in every run, so ``make check`` compares them too.
- *ratios*: CPU seconds of a hot path divided by those of a fixed reference loop in the same run,
  the median of many turns. They include kernels and C code; other processes slow both sides
  alike.

``make bench-guard`` fails if a cost has grown past its tolerance. ``ARGS=--update`` accepts the
current costs; the change of ``guard.json`` is then part of the commit under review.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).with_name("guard.json")
TOLERANCE = {"instructions": 1.05, "ratios": 1.6}
OTHER_PYTHON = 1.4  # another Python version compiles the same source to other instructions
TURNS = 15
REFERENCE_DATA = bytes(range(256)) * 64

Costs = dict[str, dict[str, float]]  # kind → path → cost


class Grown(NamedTuple):
    """A path that costs more than its tolerance allows."""

    kind: str
    path: str
    before: float
    now: float
    tolerance: float

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.path}: {self.now:,.4g}, {self.now / self.before:.2f} times "
            f"the {self.before:,.4g} of guard.json; up to {self.tolerance:g} is let pass"
        )


def compare(committed: Costs, now: Costs, tolerance: Mapping[str, float]) -> list[Grown]:
    """Return the paths that grew too far; raise if guard.json and the guard list other paths."""
    found = []
    for kind, paths in now.items():
        known = committed[kind]
        missing = known.keys() ^ paths.keys()
        if missing:
            raise ValueError(f"{PATH.name} and the guard disagree on {', '.join(sorted(missing))}")
        for path, cost in paths.items():
            if cost > known[path] * tolerance[kind]:
                found.append(Grown(kind, path, known[path], cost, tolerance[kind]))
    return found


def tolerances(committed_python: str) -> dict[str, float]:
    """Return the tolerances; instructions may differ more on another Python version."""
    is_same = committed_python == python()
    return {**TOLERANCE, "instructions": TOLERANCE["instructions"] if is_same else OTHER_PYTHON}


def python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


# --- ratios -----------------------------------------------------------------------------------


def ratios() -> dict[str, float]:
    """Return the CPU time of each path in units of the reference loop."""
    with paths() as found:
        return {name: ratio(call) for name, call in found.items()}


def ratio(call: Callable[[], object]) -> float:
    """Return the median over turns; each turn times both, so that disturbances affect both."""
    call()
    return statistics.median(cpu_time(call) / cpu_time(reference) for _ in range(TURNS))


def cpu_time(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in this thread, repeated to exceed the clock's resolution."""
    began, repeats = time.thread_time(), 0
    while (spent := time.thread_time() - began) < 0.01:
        call()
        repeats += 1
    return spent / repeats


def reference() -> int:
    """Do what a broker does: interpreted steps, small objects and a checksum of bytes."""
    table: dict[int, bytes] = {}
    for number in range(500):
        table[number] = b"%d|%d" % (number, number * 7)
    return zlib.crc32(REFERENCE_DATA, len(b"".join(table.values())))


@contextmanager
def paths() -> Iterator[dict[str, Callable[[], object]]]:
    """Return the hot paths as functions that can be called repeatedly."""
    from bench.codec import NOW_MS, batches_of, lines_of, records_of
    from bench.log import a_batch, opened
    from cordwood.batch.column_decoder import decode_columns
    from cordwood.batch.header import check_batches, parse_header
    from cordwood.batch.kernels import loader
    from cordwood.batch.lines import encode_lines
    from cordwood.batch.validation import check_body
    from cordwood.config import TopicConfig

    loader.load_kernels()
    lines, segment = lines_of(2_000), batches_of(records_of(2_000))  # small enough for CPU caches
    batch = a_batch(1_000)
    headers = [parse_header(batch)]
    with tempfile.TemporaryDirectory(prefix="cordwood-guard-") as directory:
        config = TopicConfig(segment_bytes=2**30, segment_entries=2**40)
        partition = opened(Path(directory) / "log", config)

        def append() -> None:
            partition.append(batch, headers)
            partition.publish()

        yield {
            "encode 2,000 lines": lambda: encode_lines(lines, NOW_MS),
            "check a batch of 1,000": lambda: check_batches(bytes(batch), 2**30),
            "walk the records of a batch of 1,000": lambda: check_body(batch, 0, headers[0], 0),
            "decode 2,000 records to columns": lambda: decode_columns(segment),
            "append a batch of 1,000": append,
        }
        partition.close()


# --- the command ------------------------------------------------------------------------------


def measured(kinds: list[str]) -> Costs:
    from bench import opcodes

    measures: dict[str, Callable[[], Mapping[str, float]]] = {
        "instructions": opcodes.count,
        "ratios": ratios,
    }
    return {kind: dict(measures[kind]()) for kind in kinds}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description=__doc__)
    parser.add_argument("--update", action="store_true", help="accept the costs as they are")
    asked = parser.parse_args(arguments)
    now = measured(list(TOLERANCE))
    if asked.update:
        kept = {
            kind: {p: float(f"{c:.4g}") for p, c in costs.items()} for kind, costs in now.items()
        }
        PATH.write_text(json.dumps({"python": python(), **kept}, indent=1) + "\n")
        print(f"written: bench/{PATH.name}")
        subprocess.run([sys.executable, PATH.parents[1] / "scripts" / "docs.py"], check=True)
        return 0
    committed = json.loads(PATH.read_text())
    for kind, costs in now.items():
        for path, cost in costs.items():
            print(f"{kind:12} {path:38} {cost:10.4g}   guard.json {committed[kind].get(path, 0):g}")
    grown = compare(committed, now, tolerances(committed["python"]))
    for each in grown:
        print(f"GROWN: {each}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
