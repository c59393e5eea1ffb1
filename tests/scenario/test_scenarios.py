"""Every scenario of ``cordwood scenario`` passes."""

from __future__ import annotations

import io

import pytest

from cordwood.lab.scenarios import SCENARIOS, ScenarioRun
from cordwood.lab.scenarios.compaction import under_load
from cordwood.lab.scenarios.pipeline import play_exactly_once

ON_SPARK = {"routing", "exactly-once", "cold-storage", "dead-letter", "compaction-under-load"}


SHORTER = {  # `cordwood scenario` runs them in full
    "exactly-once": lambda stage: play_exactly_once(stage, 20_000, kills=4, driver_kills=1),
    "compaction-under-load": lambda stage: under_load(stage, fill=20_000, quiet_s=1.0),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.spark, pytest.mark.slow] if name in ON_SPARK else [])
        for name in SCENARIOS
    ],
)
def test_every_scenario_passes(name: str):
    """Each scenario function prints PASS; a failure shows its output."""
    out = io.StringIO()
    try:
        with ScenarioRun(name, out=out) as stage:
            SHORTER.get(name, SCENARIOS[name])(stage)
    finally:
        print(out.getvalue())
    assert out.getvalue().rstrip().endswith("step=result outcome=PASS")
    assert "outcome=FAIL" not in out.getvalue()
