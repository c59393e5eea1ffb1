"""Kill the broker at every durable step of a delivery and of its recovery.

In between, the target topic may be deleted, or deleted and created again. In every case the broker
starts, every topic that still exists has each record once, cursors move together with the records,
and a driver that retries gets an answer without data loss.
"""

from __future__ import annotations

import shutil

import pytest

from cordwood.errors import UnknownJob
from cordwood.testing import Broker
from support.deliveries import (
    Snapshots,
    a_delivery,
    change_topics,
    cursor,
    deliver,
    ensure,
    stage,
    staged,
    words,
)

OUTCOMES = {
    "left alone": ((), ()),
    "deleted": (("a",), ()),
    "recreated": (("a",), ("a",)),
}
SETTINGS = {"durability": "fsync", "monitor_interval_ms": 10**9}
QUICK = {**SETTINGS, "durability": "os"}
WHOLE_A, WHOLE_B = ["0", "0", "1", "2", "4"], ["0", "3"]


def a_batch(kind, batch, start, end, **options):
    """Create a batch of a route, which moves a cursor, or of a sink, which has none."""
    made = a_delivery(batch, start=start, end=end, **options)
    return made if kind == "route" else made._replace(cursors={}, starts={})


@pytest.fixture(scope="module", params=["route", "sink"])
def story(request, tmp_path_factory):
    """Deliver to two topics after an earlier delivery; copy the disk before each durable step."""
    directory = tmp_path_factory.mktemp("snapshots")
    with pytest.MonkeyPatch.context() as patch, Broker(directory / "data", **SETTINGS) as broker:
        broker.service.broker.deliveries._appender.append_bytes = 1  # append every part separately
        ensure(broker, "in")
        stage(broker, "before", x="0", y="0", z="0")
        assert deliver(broker, a_batch(request.param, 0, 0, 5, job="before"))
        stage(broker, "job", x="1 2", y="3", z="4")
        found = Snapshots(broker.data, directory, patch)
        with found.taken():
            assert deliver(broker, a_batch(request.param, 1, 5, 10))
        assert (words(broker, "a"), words(broker, "b")) == (WHOLE_A, WHOLE_B)
    return request.param, list(found)


def accepted_from(snapshots):
    """Return the step after the first transaction, which records the delivery."""
    return next(n for n, name, _ in snapshots if name.startswith("SqliteStore.txn")) + 1


def expect_recovered(data, kind, outcome, *, where, is_accepted):
    """Start a broker on the remaining data, check it, and let the driver retry."""
    with Broker(data, **QUICK) as again:
        assert again.service.broker.health().deliveries_quarantined == {}, where
        if kind == "route":
            assert cursor(again) == (10 if is_accepted else 5), where
        assert words(again, "b") == (WHOLE_B if is_accepted else ["0"]), where
        before_a = WHOLE_A if is_accepted else ["0", "0"]
        assert words(again, "a") == (before_a if outcome == "left alone" else []), where
        expect_asked_again(again, kind, outcome, where=where, is_accepted=is_accepted)


def expect_asked_again(again, kind, outcome, *, where, is_accepted):
    """Retry as the driver does, then run the same batch again with newly staged files."""
    is_due = not is_accepted or (outcome != "left alone" and kind == "sink")
    try:
        assert deliver(again, a_batch(kind, 1, 5, 10)) is is_due, where
        is_due = False
    except UnknownJob:  # the remaining topics have the records, and the staged files are gone
        assert is_accepted, where
        assert is_due, where
    stage(again, "rerun", x="1 2", y="3", z="4")
    assert deliver(again, a_batch(kind, 1, 5, 10, job="rerun")) is is_due, where
    whole_a = WHOLE_A if outcome == "left alone" else ["1", "2", "4"]
    if kind == "route" and is_accepted and outcome != "left alone":
        whole_a = []  # already consumed, and deleted with the topic
    assert (words(again, "a"), words(again, "b")) == (whole_a, WHOLE_B), where
    stage(again, "next", x="5", y="6", z="7")
    assert deliver(again, a_batch(kind, 2, 10, 20, job="next")), where
    assert (words(again, "a"), words(again, "b")) == ([*whole_a, "5", "7"], [*WHOLE_B, "6"]), where
    assert staged(again) == [], where


@pytest.mark.slow
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_broker_killed_at_any_step_of_a_delivery_delivers_once(story, outcome, tmp_path):
    """A crash before the delivery is recorded changes nothing.

    After that point, every record is delivered exactly once per topic.
    """
    kind, snapshots = story
    assert len(snapshots) >= 10
    for number, name, copy in snapshots:
        data = tmp_path / str(number)
        shutil.copytree(copy, data)
        change_topics(data, delete=OUTCOMES[outcome][0], create=OUTCOMES[outcome][1])
        where = f"{kind}, killed before step {number} ({name}), topic {outcome}"
        is_accepted = number >= accepted_from(snapshots)
        expect_recovered(data, kind, outcome, where=where, is_accepted=is_accepted)
        shutil.rmtree(data)


@pytest.mark.slow
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_broker_killed_again_at_any_step_of_its_recovery_delivers_once(
    story, outcome, tmp_path, monkeypatch
):
    """Recovery can be interrupted and repeated, whatever happened to the topic meanwhile."""
    kind, snapshots = story
    data = tmp_path / "data"
    shutil.copytree(snapshots[accepted_from(snapshots) + 1][2], data)
    found = Snapshots(data, tmp_path, monkeypatch)
    with found.taken(), Broker(data, **SETTINGS) as again:
        assert words(again, "b") == WHOLE_B
    stride = (
        1 if outcome == "deleted" else 4
    )  # if nothing can be cancelled, every fourth step is enough
    for number, name, copy in list(found)[::stride]:
        change_topics(copy, delete=OUTCOMES[outcome][0], create=OUTCOMES[outcome][1])
        where = f"{kind}, killed before step {number} of a recovery ({name}), topic {outcome}"
        expect_recovered(copy, kind, outcome, where=where, is_accepted=True)
        shutil.rmtree(copy)
