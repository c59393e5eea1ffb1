"""A real broker's replies have the shapes that docs/http.md documents."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cordwood.testing import Broker
from support import lines

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()
SHAPES = dict(re.findall(r"<!-- shape: (\S+) -->\n```json\n(.*?)```", PAGE, re.DOTALL))
FREE = {  # objects whose keys are data, so their keys are not compared
    "addresses",
    "background_tasks_died",
    "compaction_quarantined",
    "config",
    "damage_accepted",
    "damaged_partitions",
    "job_failures",
    "maintenance_failed",
    "offline_partitions",
    "pipeline_jobs_failed",
    "sources",
}


def shape(value: Any, name: str = "") -> Any:
    """Reduce a JSON value to names and types; a list to its first element."""
    if isinstance(value, dict):
        return {} if name in FREE else {key: shape(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__


def ask(broker: Broker, method: str, path: str, body: object = None) -> Any:
    """Return the JSON reply, also for an HTTP error."""
    data = None if body is None else json.dumps(body).encode()
    kind = {"content-type": "application/json"} if data else {}
    asked = urllib.request.Request(f"http://{broker.http}{path}", data, kind, method=method)
    try:
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


@pytest.fixture(scope="module")
def broker():
    """A broker with a topic, a reader and a route, created over HTTP as the page documents."""
    with Broker() as running:
        fields = {"topic": "orders", "reader": "billing"}
        made = ask(
            running, "POST", "/api/readers", {"action": "register", "create": True, **fields}
        )
        assert made == {"ok": True}
        moved = {"action": "reset", "partition": 0, "offset": 0, **fields}
        assert ask(running, "POST", "/api/readers", moved) == {"ok": True}
        route = {"kind": "prefix", "key": "orders", "topic": "sales"}
        assert ask(running, "POST", "/api/routes", route) == {"ok": True}
        yield running


@pytest.mark.parametrize("path", SHAPES)
def test_answer_has_the_shape_on_the_page(broker: Broker, path: str):
    """Reply and documentation have the same names and types at every level."""
    assert shape(ask(broker, "GET", path)) == shape(json.loads(SHAPES[path]))


def test_cut_and_reclaim_answer_with_counts(broker: Broker):
    """``cut`` of one topic and ``reclaim`` of all topics reply with counts."""
    assert ask(broker, "POST", "/api/cut", {"topic": "orders"}) == {"sealed": 0}
    assert ask(broker, "POST", "/api/reclaim", {}) == {"dropped": 0}


def test_readers_are_moved_and_removed_as_the_page_says(broker: Broker):
    """``advance`` never moves a cursor back, ``reset`` sets it, ``remove`` deletes the reader."""
    who = {"topic": "moved", "reader": "another", "partition": 0}
    for _ in range(7):
        lines.ask(broker.control, "PUT moved one")
    ask(broker, "POST", "/api/readers", {"action": "register", "topic": "moved", "reader": "one"})
    for change in ({"action": "register"}, {"action": "reset", "offset": 7}):
        assert ask(broker, "POST", "/api/readers", {**who, **change}) == {"ok": True}
    ask(broker, "POST", "/api/readers", {**who, "action": "advance", "offset": 3})
    rows = ask(broker, "GET", "/api/readers?topic=moved")["readers"]
    assert {row["reader"]: row["seq"] for row in rows}["another"] == 7
    ask(broker, "POST", "/api/readers", {**who, "action": "remove"})
    rows = ask(broker, "GET", "/api/readers?topic=moved")["readers"]
    assert [row["reader"] for row in rows] == ["one"]
