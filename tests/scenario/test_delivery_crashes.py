"""Kill the broker at every durable step of a delivery and of its recovery.

In between, the topic a delivery is for may be deleted, or deleted and created again. Whatever
happens when: the broker starts, every topic that lives through it has each record once, cursors
move with the records, and the driver that asks again finds an answer that loses nothing.
"""

from __future__ import annotations

import shutil

import pytest

from cordwood.broker.jobs import staged_appends
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

FATES = {
    "left alone": ((), ()),
    "deleted": (("a",), ()),
    "recreated": (("a",), ("a",)),
}
SETTINGS = {"durability": "fsync", "monitor_interval_ms": 10**9}
QUICK = {**SETTINGS, "durability": "os"}
WHOLE_A, WHOLE_B = ["0", "0", "1", "2", "4"], ["0", "3"]


def a_batch(kind, batch, start, end, **options):
    """Of a route, which moves its cursor with the records, or of a sink, which has none."""
    made = a_delivery(batch, start=start, end=end, **options)
    return made if kind == "route" else made._replace(cursors={}, starts={})


@pytest.fixture(scope="module", params=["route", "sink"])
def story(request, tmp_path_factory):
    """One delivery, to two topics, behind an earlier one; a copy of the disk before each step."""
    room = tmp_path_factory.mktemp("snapshots")
    with pytest.MonkeyPatch.context() as patch, Broker(room / "data", **SETTINGS) as broker:
        patch.setattr(staged_appends, "APPEND_BYTES", 1)  # every part is an append of its own
        ensure(broker, "in")
        stage(broker, "before", x="0", y="0", z="0")
        assert deliver(broker, a_batch(request.param, 0, 0, 5, job="before"))
        stage(broker, "job", x="1 2", y="3", z="4")
        found = Snapshots(broker.data, room, patch)
        with found.taken():
            assert deliver(broker, a_batch(request.param, 1, 5, 10))
        assert (words(broker, "a"), words(broker, "b")) == (WHOLE_A, WHOLE_B)
    return request.param, list(found)


def accepted_from(snapshots):
    """The step after the first transaction, which writes the delivery down."""
    return next(n for n, name, _ in snapshots if name.startswith("SqliteStore.txn")) + 1


def expect_recovered(data, kind, fate, *, where, is_accepted):
    """Start on what was left, look, and let the driver ask again."""
    with Broker(data, **QUICK) as again:
        assert again.service.broker.is_ready()[1]["deliveries_quarantined"] == {}, where
        if kind == "route":
            assert cursor(again) == (10 if is_accepted else 5), where
        assert words(again, "b") == (WHOLE_B if is_accepted else ["0"]), where
        before_a = WHOLE_A if is_accepted else ["0", "0"]
        assert words(again, "a") == (before_a if fate == "left alone" else []), where
        expect_asked_again(again, kind, fate, where=where, is_accepted=is_accepted)


def expect_asked_again(again, kind, fate, *, where, is_accepted):
    """The driver's own retry, then a run of the same batch that staged its files anew."""
    is_due = not is_accepted or (fate != "left alone" and kind == "sink")
    try:
        assert deliver(again, a_batch(kind, 1, 5, 10)) is is_due, where
        is_due = False
    except UnknownJob:  # the topics that live got the records, and the files are gone
        assert is_accepted, where
        assert is_due, where
    stage(again, "rerun", x="1 2", y="3", z="4")
    assert deliver(again, a_batch(kind, 1, 5, 10, job="rerun")) is is_due, where
    whole_a = WHOLE_A if fate == "left alone" else ["1", "2", "4"]
    if kind == "route" and is_accepted and fate != "left alone":
        whole_a = []  # consumed, and gone with the topic
    assert (words(again, "a"), words(again, "b")) == (whole_a, WHOLE_B), where
    stage(again, "next", x="5", y="6", z="7")
    assert deliver(again, a_batch(kind, 2, 10, 20, job="next")), where
    assert (words(again, "a"), words(again, "b")) == ([*whole_a, "5", "7"], [*WHOLE_B, "6"]), where
    assert staged(again) == [], where


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_a_broker_killed_at_any_step_of_a_delivery_delivers_once(story, fate, tmp_path):
    """Before it is written down nothing has happened; after, all happens, and once per topic."""
    kind, snapshots = story
    assert len(snapshots) >= 10
    for number, name, copy in snapshots:
        data = tmp_path / str(number)
        shutil.copytree(copy, data)
        change_topics(data, delete=FATES[fate][0], create=FATES[fate][1])
        where = f"{kind}, killed before step {number} ({name}), topic {fate}"
        is_accepted = number >= accepted_from(snapshots)
        expect_recovered(data, kind, fate, where=where, is_accepted=is_accepted)
        shutil.rmtree(data)


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_a_broker_killed_again_at_any_step_of_its_recovery_delivers_once(
    story, fate, tmp_path, monkeypatch
):
    """A recovery is repeated until one ends, whatever became of the topic meanwhile."""
    kind, snapshots = story
    data = tmp_path / "data"
    shutil.copytree(snapshots[accepted_from(snapshots) + 1][2], data)
    found = Snapshots(data, tmp_path, monkeypatch)
    with found.taken(), Broker(data, **SETTINGS) as again:
        assert words(again, "b") == WHOLE_B
    stride = (
        1 if fate == "deleted" else 4
    )  # where nothing can be cancelled, fewer steps tell as much
    for number, name, copy in list(found)[::stride]:
        change_topics(copy, delete=FATES[fate][0], create=FATES[fate][1])
        where = f"{kind}, killed before step {number} of a recovery ({name}), topic {fate}"
        expect_recovered(copy, kind, fate, where=where, is_accepted=True)
        shutil.rmtree(copy)
