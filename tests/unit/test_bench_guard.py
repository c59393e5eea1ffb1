"""The benchmark guard fails if a hot path becomes more expensive, on any machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from bench import guard, opcodes

ROOT = guard.PATH.parents[1]
COMMITTED = {"instructions": {"produce": 1000.0}, "ratios": {"append": 0.5}}


def test_no_hot_path_costs_more_instructions_than_committed():
    """No hot path executes more bytecode instructions than committed.

    Instructions do not depend on the machine. They are counted in a process without pytest, which
    rewrites assertions.
    """
    committed = json.loads(guard.PATH.read_text())
    program = [sys.executable, "-m", "bench.opcodes"]
    counted = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    now = {"instructions": json.loads(counted.stdout)}
    grown = guard.compare(committed, now, guard.tolerances(committed["python"]))
    assert [str(each) for each in grown] == [], "`make bench-guard ARGS=--update` accepts it"


def test_work_done_twice_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The guard reports a path that decodes everything twice."""
    before = {"instructions": opcodes.decoded()}
    decode = opcodes.decode_columns

    def twice(*arguments, **options):
        decode(*arguments, **options)
        return decode(*arguments, **options)

    monkeypatch.setattr(opcodes, "decode_columns", twice)
    (grown,) = guard.compare(before, {"instructions": opcodes.decoded()}, guard.TOLERANCE)
    assert grown.path == "decode 10 batches of 1,000 to Arrow"
    assert grown.now > 1.5 * grown.before


@pytest.mark.parametrize(
    ("cost", "is_grown"), [(400.0, False), (1000.0, False), (1049.0, False), (1100.0, True)]
)
def test_growth_past_the_tolerance_is_a_fault_and_less_never_is(cost: float, is_grown: bool):
    """A cost may grow by five percent. More is an error, and less is always accepted."""
    now = {"instructions": {"produce": cost}}
    assert bool(guard.compare(COMMITTED, now, guard.TOLERANCE)) is is_grown


def test_path_nobody_measures_any_more_is_a_fault():
    """A path that is committed but no longer measured is an error."""
    with pytest.raises(ValueError, match=r"guard\.json and the guard disagree on produce"):
        guard.compare(COMMITTED, {"instructions": {}}, guard.TOLERANCE)


def test_another_python_gets_a_higher_limit():
    """Another Python version has a larger tolerance, because its bytecode differs."""
    assert guard.tolerances(guard.python())["instructions"] == guard.TOLERANCE["instructions"]
    assert guard.tolerances("3.0")["instructions"] == guard.OTHER_PYTHON


@pytest.mark.parametrize("slowness", [1.0, 7.0])
def test_ratio_does_not_depend_on_the_speed_of_the_machine(
    slowness: float, monkeypatch: pytest.MonkeyPatch
):
    """A ratio is relative to a reference loop, so it does not depend on the machine's speed."""
    now = 0.0

    def costs(seconds: float):
        def work():
            nonlocal now
            now += seconds * slowness

        return work

    monkeypatch.setattr(guard.time, "thread_time", lambda: now)
    monkeypatch.setattr(guard, "reference", costs(0.02))
    assert guard.ratio(costs(0.06)) == pytest.approx(3.0)
