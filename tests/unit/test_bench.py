"""The benchmark runner: whatever was measured is printed and kept; what failed is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bench import run
from bench.rows import Row


def failing() -> list[Row]:
    """A benchmark that does not get far."""
    raise RuntimeError("broken benchmark")


@pytest.fixture
def bench_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room with one benchmark that works, one that fails and one module that is neither."""
    programs = {"good": lambda: [Row("w", "v", 1234567.0, "records/s")], "bad": failing}
    for name, program in programs.items():
        module = ModuleType(f"bench.{name}")
        module.run = program  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        (tmp_path / f"{name}.py").write_text("\ndef run(): ...\n")
    (tmp_path / "rows.py").write_text("")
    monkeypatch.setattr(run, "HERE", tmp_path)
    return tmp_path


def test_broken_benchmark_does_not_hide_the_others(
    bench_room: Path, capsys: pytest.CaptureFixture[str]
):
    """The good one's numbers are printed and kept; the exit code and last line tell of the bad."""
    assert run.main([]) == 1
    said = capsys.readouterr()
    assert "1,230,000 | records/s" in said.out
    assert said.out.endswith("FAILED: bad; the tracebacks are above\n")
    assert "broken benchmark" in said.err
    (kept,) = (bench_room / "results").iterdir()
    assert list(json.loads(kept.read_text())["rows"]) == ["good"]


def test_named_benchmark_runs_alone(bench_room: Path):
    """Only what was asked for."""
    assert run.main(["good"]) == 0


def test_unknown_benchmark_is_answered_with_the_known(
    bench_room: Path, capsys: pytest.CaptureFixture[str]
):
    """Nothing runs on a mistyped name."""
    assert run.main(["godo"]) == 2
    assert capsys.readouterr().out == "no benchmark godo; there are bad, good\n"


@pytest.mark.parametrize(
    ("value", "text"), [(12345678, "12,300,000"), (0.012345, "0.0123"), (99.99, "100"), (0, "0")]
)
def test_three_digits_are_shown_of_a_number(value: float, text: str):
    """More would pretend to a precision no benchmark has."""
    assert run.human(value) == text
