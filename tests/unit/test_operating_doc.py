"""The page docs/operating.md agrees with the code: settings and alerts exist."""

from __future__ import annotations

import re
from pathlib import Path

from cordwood.config import BrokerConfig, TopicConfig, load_broker_config, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
ALERTS = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()


def test_settings_file_on_the_page_loads(tmp_path: Path):
    """The settings file on the page is loaded as ``serve --config`` does."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "cordwood.toml"
    path.write_text(text)
    config = load_broker_config({}, {}, str(path))
    assert (config.ingress, config.ingress_buffer) == ("127.0.0.1:5673", 8192)


def test_every_alert_is_explained():
    """The table on the page lists exactly the shipped alerts."""
    table = PAGE.partition("## Monitoring")[2].partition("## Backup")[0]
    explained = set(re.findall(r"^\| ([A-Z]\w+) \|", table, re.MULTILINE))
    shipped = {name.removeprefix("Cordwood") for name in re.findall(r"alert: (\w+)", ALERTS)}
    assert explained == shipped - {"Down"}  # needs no explanation


def test_settings_named_on_the_page_exist():
    """Every dotted name in a code span is a setting, a file, a log event or a client setting."""
    known = {*rows(BrokerConfig), *rows(TopicConfig)}
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=\w+)?`", PAGE))
    files = {"cordwood.json", "alerts.yml", "deploy", "pipeline.log"}
    others = {"partition.damaged", "compaction.missing", "auto.offset.reset"}
    assert named - known - files - others == set()
