"""Health: pipeline jobs, background tasks, partition states, and the lag of consumer groups."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

from cordwood.broker.background import BackgroundTasks
from cordwood.broker.health import UNREADY, is_served, partition_state
from cordwood.broker.jobs.pipeline_status import PipelineState, PipelineStatus
from cordwood.broker.lag import TopicLag, by_topic, furthest_behind, group_lags
from cordwood.log.health.registry import Condition, DamagedRange
from cordwood.metadata.keys import Cursor, ReaderPartition
from cordwood.model import TopicPartition
from cordwood.protocol.api.status import Health
from support.stores import TP, append_sealed, open_store

# --- jobs -------------------------------------------------------------------------------------


def test_failures_of_a_job_are_counted_over_every_life_of_the_pipeline():
    """The child process counts from 0 at each start, but the failure counter never decreases."""
    stats = PipelineStatus(state=PipelineState.UP)
    for failed in (0, 1, 3):
        stats.take_report({"route": {"open": True, "failed": failed}})
    stats.jobs = {}  # the child process died
    stats.take_report({"route": {"open": True, "failed": 2}})
    assert stats.report().job_failures == {"route": 5}


def test_a_job_that_does_not_run_is_named_with_its_last_error():
    """A job that runs again is not listed. A dead child process is listed as the pipeline."""
    stats = PipelineStatus(state=PipelineState.UP)
    stats.take_report(
        {
            "route": {"open": False, "failed": 1, "error": "KeyError: x"},
            "compact": {"open": True, "failed": 4, "error": "old"},
        }
    )
    assert stats.failed_jobs() == {"route": "KeyError: x"}
    stats.state, stats.detail = PipelineState.WAITING, "ended with code 7"
    assert stats.failed_jobs() == {"pipeline": "ended with code 7"}


@pytest.mark.parametrize("state", [each for each in PipelineState if each is not PipelineState.UP])
def test_no_job_is_up_while_the_pipeline_is_not(state):
    """A job counts as up only while the pipeline is up, whatever the last report contains."""
    stats = PipelineStatus(state=PipelineState.UP)
    stats.take_report({"route": {"open": True}, "compact": {"open": False, "error": "x"}})
    assert (stats.is_job_up("route"), stats.is_job_up("compact")) == (True, False)
    stats.state = state
    assert not stats.is_job_up("route")


@pytest.mark.parametrize("job", [None, [], "x", {}, {"failed": "many"}, {"failed": None}])
def test_a_report_that_lies_does_no_harm(job):
    """Invalid job reports from the child process are ignored."""
    stats = PipelineStatus(state=PipelineState.UP)
    stats.take_report({"route": job})
    assert (stats.failed_jobs(), stats.job_failures["route"]) == ({}, 0)


# --- background tasks -------------------------------------------------------------------------


async def test_a_background_task_that_dies_is_logged_and_named(caplog):
    """A background task that fails is logged at ERROR and listed in ``died``."""
    tasks, died = BackgroundTasks(), asyncio.Event()

    async def mistake() -> None:
        asyncio.get_running_loop().call_soon(died.set)
        raise ZeroDivisionError

    tasks.start("monitor", mistake())
    await died.wait()
    await tasks.stop()
    assert list(tasks.died) == ["monitor"]
    assert [r.levelno for r in caplog.records if "task.failed" in r.message] == [logging.ERROR]


async def test_a_task_that_is_stopped_did_not_die():
    """A stopped task is cancelled, so it does not count as failed."""
    tasks = BackgroundTasks()
    tasks.start("waiting", asyncio.Event().wait())
    await tasks.stop()
    assert tasks.died == {}


# --- facts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNREADY)
def test_each_of_these_problems_alone_makes_the_broker_unready(name):
    """Each listed condition makes the broker unready; a maintenance failure does not."""
    well = Health(**dict.fromkeys(Health.__struct_fields__) | {"data_directory": "ok"})
    assert is_served(well)
    assert not is_served(replace(well, data_directory="it is gone"))
    assert is_served(replace(well, maintenance_failed={"t-0": "x"}))
    assert not is_served(replace(well, **{name: {"t-0": "x"}}))


def test_a_partitions_state_is_its_worst(tmp_path):
    """The order from mild to worst is damaged, read-only, offline."""
    store = open_store(tmp_path / "data")
    assert partition_state(store.health, TP).state == "online"
    store.health.report(TP, Condition.PURGE_FAILED, "x")
    assert partition_state(store.health, TP).state == "online"
    store.health.report_damage(TP, DamagedRange(0, 1, 2, "bad"))
    assert partition_state(store.health, TP).state == "damaged"
    store.health.report(TP, Condition.READ_ONLY, "x")
    assert partition_state(store.health, TP).state == "read-only"
    store.health.report(TP, Condition.OFFLINE, "x")
    answer = partition_state(store.health, TP)
    assert (answer.state, len(answer.problems), len(answer.damage)) == ("offline", 3, 1)
    store.close()


# --- lag --------------------------------------------------------------------------------------


def test_lag_counts_what_is_there_and_not_committed(tmp_path):
    """Lag excludes records below the log start. An offline partition has no lag."""
    store = open_store(tmp_path / "data")
    store.create_topic("t", 2)
    append_sealed(store, "abcd")
    store.metadata.readers.commit_cursors(
        {
            ReaderPartition("g", "t", 0): Cursor(1),
            ReaderPartition("g", "t", 1): Cursor(0),
            ReaderPartition("late", "t", 0): Cursor(0),
        }
    )
    store.segments.advance_start(TP, 2)
    rows = {(lag.group, lag.partition): lag.lag for lag in group_lags(store)}
    assert rows == {("g", 0): 2, ("g", 1): 0, ("late", 0): 2}
    assert by_topic(group_lags(store, "g")) == [TopicLag("g", "t", 2, 2)]
    store.topics["t"].slots[0] = store._offline(TP, "broken")
    (offline,) = list(group_lags(store, "late"))
    assert (offline.end_offset, offline.lag) == (None, None)
    assert by_topic([offline]) == []
    store.close()


def test_at_most_so_many_pairs_are_shown_the_furthest_behind():
    """A limit bounds the size of a scrape; the groups with the most lag are kept."""
    lags = [TopicLag(f"g{n}", "t", n, n) for n in range(10)]
    kept, left_out = furthest_behind(lags, 3)
    assert ([lag.group for lag in kept], left_out) == (["g7", "g8", "g9"], 7)
    assert furthest_behind(lags, 10) == (lags, 0)


def test_only_partitions_with_a_cursor_are_looked_at(tmp_path):
    """Lag reads only partitions with a cursor, so other partitions add no cost to a scrape."""
    store = open_store(tmp_path / "data")
    store.create_topic("t", 3)
    store.metadata.readers.commit_cursors({ReaderPartition("g", "t", 2): Cursor(0)})
    asked = []
    whole = store.partition
    store.partition = lambda tp: asked.append(tp) or whole(tp)
    assert [lag.partition for lag in group_lags(store)] == [2]
    assert asked == [TopicPartition("t", 2)]
    store.close()
