"""Dashboard, alert rules and systemd unit in deploy/ agree with the code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cordwood.broker.metrics import METRICS
from cordwood.cli.app import app
from cordwood.cli.commands.generate import render
from cordwood.config import BrokerConfig, rows
from cordwood.log.health.registry import Condition
from cordwood.protocol.api.status import Health

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "cordwood.json").read_text())
ALERTS = (DEPLOY / "prometheus" / "alerts.yml").read_text()
UNIT = (DEPLOY / "systemd" / "cordwood.service").read_text()
OUR_METRIC = re.compile(r"\bcordwood_\w+")
SAFE_LABELS = {"instance", "job", "le"}  # set by Prometheus itself
# Each field of /readyz, and the metric of its alert.
SHOWN_BY = {
    "disk_full": "cordwood_disk_full",
    "data_directory": "cordwood_data_directory_lost",
    "offline_partitions": "cordwood_partition_offline",
    "damaged_partitions": "cordwood_damaged_ranges",
    "maintenance_failed": "cordwood_partition_problem",
    "compaction_quarantined": "cordwood_log_cleaner_quarantined",
    "deliveries_quarantined": "cordwood_deliveries_quarantined",
    "background_tasks_died": "cordwood_background_tasks_died",
    "pipeline_jobs_failed": "cordwood_pipeline_job_up",
    "pipeline": "cordwood_pipeline_up",
}
ACCEPTED = {"damage_accepted"}  # accepted by an operator; /readyz only lists it
# Counters with labels that are exported as 0 before the first event.
BEGIN_AT_ZERO = {"cordwood_connections_refused_total", "cordwood_pipeline_job_failures_total"}


def series() -> set[str]:
    """Return all series names of a scrape. A histogram has three."""
    names = {name for name, row in METRICS.items() if row.kind != "histogram"}
    histograms = {name for name, row in METRICS.items() if row.kind == "histogram"}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each PromQL expression with the panel, variable or alert that contains it."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"dashboard: {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"dashboard: ${variable['name']}", variable["query"]["query"]
    for name, text in re.findall(r"- alert: (\w+)\n(?: +#.*\n)* +expr: (.+)", ALERTS):
        yield f"alert: {name}", text


EXPRESSIONS = dict(enumerate(expressions()))


def selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each of our series in an expression, with the labels that select it."""
    for name, inside in re.findall(r"\b(cordwood_\w+)(?:\{([^}]*)\})?", text):
        yield name, set(re.findall(r"(\w+)=~?", inside))


@pytest.mark.parametrize("number", EXPRESSIONS, ids=lambda number: EXPRESSIONS[number][0])
def test_every_metric_that_is_asked_for_exists(number: int):
    """Dashboard and rules use only metrics and labels that exist."""
    text = EXPRESSIONS[number][1]
    for name, labels in selectors(text):
        assert name in series(), text
        row = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        assert labels - SAFE_LABELS <= set(row.labels), text


@pytest.mark.parametrize("number", EXPRESSIONS, ids=lambda number: EXPRESSIONS[number][0])
def test_grouping_is_by_labels_the_metric_has(number: int):
    """Expressions group only by labels that the metric has."""
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
    """Every alert has a summary, a severity and a unique name."""
    rules = ALERTS.split("- alert: ")[1:]
    assert len(rules) == sum(place.startswith("alert") for place, _ in EXPRESSIONS.values())
    assert all("summary:" in rule and "severity:" in rule for rule in rules)
    names = [rule.split()[0] for rule in rules]
    assert len(set(names)) == len(names)


def test_what_must_page_somebody_has_a_rule():
    """Data loss, damage, a full disk, an offline partition and a dead job each have an alert."""
    for name in (
        "cordwood_disk_full",
        "cordwood_partition_offline",
        "cordwood_lost_records_total",
        "cordwood_damaged_ranges",
        "cordwood_background_tasks_died",
        "cordwood_pipeline_up",
        "cordwood_pipeline_job_up",
        "cordwood_pipeline_job_failures_total",
        "cordwood_group_lag_records",
    ):
        assert re.search(rf"expr: .*\b{name}\b", ALERTS), name


def test_every_fact_of_readyz_has_an_alert():
    """Every field of /readyz has an alert."""
    assert set(Health.__struct_fields__) - {"ready"} == set(SHOWN_BY) | ACCEPTED
    for name in SHOWN_BY.values():
        assert re.search(rf"expr: .*\b{name}\b", ALERTS), name


def test_no_metric_has_a_label_that_prometheus_takes_for_itself():
    """No metric has the label ``job`` or ``instance``, because Prometheus sets these itself."""
    for name, row in METRICS.items():
        assert not {"job", "instance"} & set(row.labels), name


def test_what_is_0_or_1_is_compared_with_that():
    """Alerts compare metrics that are 0 or 1 only with 0 or 1."""
    flags = {name for name, row in METRICS.items() if row.doc.startswith("1 w")}
    for place, text in EXPRESSIONS.values():
        for name, number in re.findall(r"\b(cordwood_\w+)(?:\{[^}]*\})? [=<>!]+ (\S+)", text):
            if place.startswith("alert") and name in flags:
                assert number in {"0", "1"}, place


def test_a_counter_that_begins_with_its_first_event_alerts_on_that_event():
    """An alert on a counter with labels also fires on the counter's first event.

    ``increase()`` of a new series is 0, however large its first value is.
    """
    for place, text in EXPRESSIONS.values():
        for name in re.findall(r"increase\((cordwood_\w+)", text):
            if place.startswith("alert") and METRICS[name].labels and name not in BEGIN_AT_ZERO:
                assert f"{name} > 0 unless {name} offset" in text, place


def test_labels_in_an_alerts_text_are_there():
    """The text of an alert uses only labels that its metric has."""
    for rule in ALERTS.split("- alert: ")[1:]:
        expression, _, text = rule.partition("labels:")
        names = OUR_METRIC.findall(expression)
        known = [(METRICS.get(n) or METRICS[n.rpartition("_")[0]]).labels for n in names]
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label == "instance" or any(label in labels for labels in known), rule


def test_every_health_alert_names_a_condition_that_exists():
    """Health alerts name only conditions that exist."""
    named = re.findall(r'condition=~?"([^"]+)"', ALERTS)
    assert named
    assert {one for each in named for one in each.split("|")} <= {c.value for c in Condition}


def test_panels_do_not_lie_on_each_other():
    """Dashboard panels do not overlap and fit the grid."""
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


GENERATED = {
    "grafana/cordwood.json": "grafana",
    "prometheus/alerts.yml": "alerts",
    "prometheus/prometheus.yml": "prometheus",
    "systemd/cordwood.service": "systemd --program /opt/cordwood/bin/cordwood",
    "systemd/sysusers.conf": "sysusers",
    "compose/compose.yml": "compose",
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_file_of_deploy_is_what_generate_prints(name: str):
    """Each file in deploy/ is the output of `cordwood generate`; write it anew if this fails."""
    done = CliRunner().invoke(app, ["generate", *GENERATED[name].split()])
    assert (done.exit_code, done.output) == (0, (DEPLOY / name).read_text())


def test_deploy_has_only_files_that_are_generated():
    """There is no file in deploy/ that nobody compares."""
    there = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert there == set(GENERATED)


def test_generated_files_have_the_addresses_that_were_given():
    """Addresses, directories and programs of the command line replace every placeholder."""
    run = partial(CliRunner().invoke, app)
    scrape = yaml.safe_load(run(["generate", "prometheus", "--http", "b1:81"]).output)
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": ["b1:81"]}]
    composed = run(["generate", "compose", "--http", "127.0.0.1:81", "--kafka", "127.0.0.1:92"])
    ports = yaml.safe_load(composed.output)["services"]["cordwood"]["ports"]
    assert {"127.0.0.1:92:9092", "127.0.0.1:81:8080"} <= set(ports)
    unit = run(["generate", "systemd", "--config", "/c", "--data", "/d"]).output
    program = Path(sys.executable).with_name("cordwood")
    assert f"ExecStart={program} serve --config /c --data /d\n" in unit
    assert not re.search(r"@[A-Z]+@", unit + composed.output)


def test_compose_starts_a_command_that_exists():
    """The Compose file uses only options of ``cordwood serve``."""
    broker = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())["services"][
        "cordwood"
    ]
    words = set(re.findall(r"--[a-z-]+", broker["command"][2].partition("cordwood serve")[2]))
    known = {"--no-pipeline"} | {f"--{name.replace('.', '-')}" for name in rows(BrokerConfig)}
    assert words <= known


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path):
    """systemd-analyze finds nothing wrong with the unit."""
    unit = tmp_path / "cordwood.service"
    text = render("cordwood.service", {"PROGRAM": "/bin/true", "CONFIG": "/c", "DATA": "/d"})
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cordwood" not in done.stderr, done.stderr


def test_unit_starts_a_command_that_exists():
    """The systemd unit uses only options of ``cordwood serve``."""
    (line,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    words = shlex.split(line)
    assert words[1] == "serve"
    known = {"--config"} | {f"--{name.replace('.', '-')}" for name in rows(BrokerConfig)}
    assert {word for word in words if word.startswith("--")} <= known


def test_selectors_are_found_in_an_expression():
    """``selectors`` finds series and labels in an expression."""
    found = dict(selectors('rate(cordwood_x_total{topic=~"a",instance="b"}[5m]) / cordwood_y'))
    assert found == {"cordwood_x_total": {"topic", "instance"}, "cordwood_y": set()}
