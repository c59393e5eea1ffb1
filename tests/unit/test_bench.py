"""The benchmark runner prints and stores all results, and reports failed benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bench import run
from bench.rows import Row


def failing() -> list[Row]:
    """Fail, as a broken benchmark does."""
    raise RuntimeError("broken benchmark")


@pytest.fixture
def bench_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create one benchmark that works, one that fails and a module that is no benchmark."""
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
    bench_directory: Path, capsys: pytest.CaptureFixture[str]
):
    """A failed benchmark sets the exit code and the last line. Other results are still stored."""
    assert run.main([]) == 1
    output = capsys.readouterr()
    assert "1,230,000 | records/s" in output.out
    assert output.out.endswith("FAILED: bad; the tracebacks are above\n")
    assert "broken benchmark" in output.err
    (kept,) = (bench_directory / "results").iterdir()
    assert list(json.loads(kept.read_text())["rows"]) == ["good"]


def test_named_benchmark_runs_alone(bench_directory: Path):
    """Only the named benchmark runs."""
    assert run.main(["good"]) == 0


def test_unknown_benchmark_is_answered_with_the_known(
    bench_directory: Path, capsys: pytest.CaptureFixture[str]
):
    """An unknown name is refused with the known ones, and nothing runs."""
    assert run.main(["godo"]) == 2
    assert capsys.readouterr().out == "no benchmark godo; there are bad, good\n"


@pytest.mark.parametrize(
    ("value", "text"), [(12345678, "12,300,000"), (0.012345, "0.0123"), (99.99, "100"), (0, "0")]
)
def test_three_digits_are_shown_of_a_number(value: float, text: str):
    """Numbers are shown with three significant digits."""
    assert run.human(value) == text
