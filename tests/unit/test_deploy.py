"""What deploy/ ships agrees with the code: no dashboard, rule or unit names what does not exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.broker.metrics import METRICS
from cordwood.config import BrokerConfig, rows

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "cordwood.json").read_text())
ALERTS = (DEPLOY / "prometheus" / "alerts.yml").read_text()
UNIT = (DEPLOY / "systemd" / "cordwood.service").read_text()
OUR_METRIC = re.compile(r"\bcordwood_\w+")
SAFE_LABELS = {"instance", "job", "le"}  # Prometheus's own


def series() -> set[str]:
    """Every name a scrape can hold: a histogram has three."""
    names = {name for name, row in METRICS.items() if row.kind != "histogram"}
    histograms = {name for name, row in METRICS.items() if row.kind == "histogram"}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def expressions() -> Iterator[tuple[str, str]]:
    """Where each PromQL expression stands, and its text."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"dashboard: {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"dashboard: ${variable['name']}", variable["query"]["query"]
    for name, text in re.findall(r"- alert: (\w+)\n +expr: (.+)", ALERTS):
        yield f"alert: {name}", text


EXPRESSIONS = dict(enumerate(expressions()))


def selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each of our series in an expression with the labels it is selected by."""
    for name, inside in re.findall(r"\b(cordwood_\w+)(?:\{([^}]*)\})?", text):
        yield name, set(re.findall(r"(\w+)=~?", inside))


@pytest.mark.parametrize("number", EXPRESSIONS, ids=lambda number: EXPRESSIONS[number][0])
def test_every_metric_that_is_asked_for_exists(number: int):
    """Names in dashboard and rules are series of the metrics table, with its labels."""
    text = EXPRESSIONS[number][1]
    for name, labels in selectors(text):
        assert name in series(), text
        row = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        assert labels - SAFE_LABELS <= set(row.labels), text


@pytest.mark.parametrize("number", EXPRESSIONS, ids=lambda number: EXPRESSIONS[number][0])
def test_grouping_is_by_labels_the_metric_has(number: int):
    """``sum by (reader)`` of something without readers shows one nameless line."""
    text = EXPRESSIONS[number][1]
    asked = {
        label.strip()
        for inside in re.findall(r"by \(([^)]*)\)", text)
        for label in inside.split(",")
    }
    names = OUR_METRIC.findall(text)
    known = {
        label
        for name in names
        for label in (METRICS.get(name) or METRICS[name.rpartition("_")[0]]).labels
    }
    assert asked <= known | SAFE_LABELS, text


def test_every_alert_tells_what_is_wrong():
    """A rule without a sentence wakes somebody who then knows nothing; names are unique."""
    rules = ALERTS.split("- alert: ")[1:]
    assert len(rules) == sum(place.startswith("alert") for place, _ in EXPRESSIONS.values())
    assert all("summary:" in rule and "severity:" in rule for rule in rules)
    names = [rule.split()[0] for rule in rules]
    assert len(set(names)) == len(names)


def test_what_must_page_somebody_has_a_rule():
    """Loss, a full disk, an offline partition: each is an alert."""
    for name in ("cordwood_disk_full", "cordwood_partition_offline", "cordwood_lost_records_total"):
        assert name in ALERTS


def test_panels_do_not_lie_on_each_other():
    """A hand-made layout is easily wrong: every cell of the grid is taken once."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_unit_starts_a_command_that_exists():
    """The systemd unit's flags are options of ``cordwood serve``."""
    (line,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    words = shlex.split(line)
    assert words[1] == "serve"
    known = {"--config"} | {f"--{name.replace('.', '-')}" for name in rows(BrokerConfig)}
    assert {word for word in words if word.startswith("--")} <= known


def test_selectors_are_found_in_an_expression():
    """The checks above see what they are meant to see."""
    found = dict(selectors('rate(cordwood_x_total{topic=~"a",instance="b"}[5m]) / cordwood_y'))
    assert found == {"cordwood_x_total": {"topic", "instance"}, "cordwood_y": set()}
