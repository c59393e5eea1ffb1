"""A delivery appends a query's batch and its cursors whole and once, despite crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.broker.jobs import staged_appends as appends_module
from cordwood.broker.jobs.delivery import DeliveryService
from cordwood.decide.delivery import Part
from cordwood.errors import DiskFull, OffsetOutOfRange, RequestError, StaleDelivery, UnknownJob
from cordwood.lab.scenarios.stage import wait_until
from cordwood.log.staging.area import StagingArea
from cordwood.model import Record
from cordwood.testing import Broker
from support.deliveries import a_delivery, cursor, deliver, hashed, stage, staged, words


class Crash(BaseException):
    """Simulates a crash of the broker."""


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        running.run(lambda: fill_source(running))
        yield running


async def fill_source(broker):
    """Create the source topic with 1,000 records, because cursors must lie within its log."""
    topic = await broker.service.broker.topics.ensure("in", explicit=True)
    records = [Record(offset, 1, b"k", b"v") for offset in range(1000)]
    data = bytearray(encode_batch(records))
    await broker.service.broker.produce.submit(topic.partition(0), data, parse_headers(data))


def deliveries_of(broker) -> DeliveryService:
    return broker.service.broker.deliveries


def test_a_batch_is_appended_in_the_order_of_its_parts_and_forgotten(broker):
    """A delivery creates missing topics, appends parts in order, and removes the staged files."""
    stage(broker, "job", x="1 2", y="3", z="4")
    assert deliver(broker, a_delivery())
    assert words(broker, "a") == ["1", "2", "4"]
    assert words(broker, "b") == ["3"]
    assert cursor(broker) == 10
    assert staged(broker) == []


class WatchedParts(list):
    """Records the threads that iterate over it."""

    def __init__(self, parts, threads):
        super().__init__(parts)
        self._threads = threads

    def __iter__(self):
        self._threads.add(threading.get_ident())
        return super().__iter__()


def test_no_walk_over_all_parts_runs_on_the_event_loop(broker, monkeypatch):
    """A delivery may have 100,000 parts, so no loop over them runs on the event loop's thread."""
    threads: set[int] = set()
    loop_thread = broker.run(current_thread)
    stage(broker, "job", x="1 2", y="3", z="4")
    plain = hashed(broker, a_delivery())
    for name in ("chains_of", "parse_headers"):
        watched = on_thread(getattr(appends_module, name), threads)
        monkeypatch.setattr(appends_module, name, watched)
    delivery = plain._replace(parts=WatchedParts(plain.parts, threads))
    assert broker.run(lambda: deliveries_of(broker).deliver(delivery))
    assert threads
    assert loop_thread not in threads
    assert words(broker, "a") == ["1", "2", "4"]


async def current_thread():
    return threading.get_ident()


def on_thread(act, threads):
    def noted(*arguments):
        threads.add(threading.get_ident())
        return act(*arguments)

    return noted


def test_a_batch_that_comes_again_changes_nothing(broker):
    """A repeated batch number appends nothing and moves no cursor, whatever its files contain."""
    stage(broker, "job", x="1", y="2", z="3")
    assert deliver(broker, a_delivery())
    stage(broker, "again", x="9", y="9", z="9")
    assert not deliver(broker, a_delivery(job="again", end=99))
    assert words(broker, "a") == ["1", "3"]
    assert cursor(broker) == 10
    assert staged(broker) == []


def test_a_batch_older_than_the_last_is_refused(broker):
    """Otherwise a driver restarted from an old checkpoint would lose records silently."""
    for batch in (0, 1):
        stage(broker, "job", x="1", y="2", z="3")
        assert deliver(broker, a_delivery(batch))
    stage(broker, "job", x="1", y="2", z="3")
    with pytest.raises(StaleDelivery, match="already delivered batch 1 and now sends batch 0"):
        deliver(broker, a_delivery(0))


@pytest.mark.parametrize("end", [1001, 2**63, 10**40])
def test_a_delivery_whose_cursor_is_past_the_end_is_refused_whole(broker, end):
    """A cursor past the log end is refused. Nothing is appended and no cursor moves."""
    stage(broker, "job", x="1", y="2", z="3")
    with pytest.raises(OffsetOutOfRange, match="in-0 ends at offset 1000"):
        deliver(broker, a_delivery(end=end))
    assert words(broker, "a") == []
    assert cursor(broker) is None


def test_a_delivery_that_does_not_start_at_the_cursor_is_refused_whole(broker):
    """A second or outdated driver appends nothing and moves no cursor."""
    stage(broker, "job", x="1", y="2", z="3")
    assert deliver(broker, a_delivery(0, start=0))
    stage(broker, "late", x="1", y="2", z="3")
    with pytest.raises(StaleDelivery, match="is at offset 10, but query q delivers from 0"):
        deliver(broker, a_delivery(1, job="late", start=0))
    assert words(broker, "a") == ["1", "3"]
    assert cursor(broker) == 10
    assert deliver(broker, a_delivery(1, job="late", start=10, end=20))
    assert cursor(broker) == 20


def test_what_was_not_staged_is_named_and_leaves_no_trace(broker):
    """A missing file fails the delivery without any change. The query can retry the same batch."""
    stage(broker, "job", x="1", y="2")
    with pytest.raises(UnknownJob, match="z was not staged"):
        deliver(broker, a_delivery())
    assert (words(broker, "a"), cursor(broker)) == ([], None)
    stage(broker, "job", z="3")
    assert deliver(broker, a_delivery())
    assert words(broker, "a") == ["1", "3"]


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", ".hidden"])
def test_no_name_leads_out_of_the_staging_area(broker, name):
    """Job and file names that are empty, hidden or contain a path separator are refused."""
    for refused in (
        lambda: deliveries_of(broker).staged.upload(name, "file", b""),
        lambda: deliveries_of(broker).staged.discard(name),
        lambda: deliveries_of(broker).deliver(a_delivery(job=name)),
    ):
        with pytest.raises(RequestError, match="not a valid job name"):
            broker.run(refused)
    for refused in (
        lambda: deliveries_of(broker).staged.upload("job", name, b""),
        lambda: deliveries_of(broker).deliver(a_delivery(parts=[Part("a", 0, name)])),
    ):
        with pytest.raises(RequestError, match="not a valid file name"):
            broker.run(refused)


def test_discard_spares_what_a_delivery_still_needs(broker, monkeypatch):
    """A discard keeps the files of an accepted delivery and removes those of other jobs."""
    stage(broker, "job", x="1", y="2", z="3")
    stage(broker, "other", x="1")
    crash_at(deliveries_of(broker), "written", monkeypatch)
    with pytest.raises(Crash):
        deliver(broker, a_delivery())
    for job in ("job", "other"):
        broker.run(lambda job=job: deliveries_of(broker).staged.discard(job))
    assert staged(broker) == ["job"]


STEPS = ("numbered", "written", "append 0", "append 1", "append 2", "appended", "done")


def crash_at(deliveries, step, monkeypatch):
    """Make the delivery crash at the given step."""
    monkeypatch.setattr(
        deliveries._appender, "append_bytes", 1
    )  # so that every part is appended separately
    append, calls = deliveries._appender._append_run, []

    async def dying_append(*arguments):
        if step == f"append {len(calls)}":
            raise Crash(step)
        calls.append(step)
        return await append(*arguments)

    def die(*_):
        raise Crash(step)

    async def die_later(*_):
        raise Crash(step)

    monkeypatch.setattr(deliveries._appender, "_append_run", dying_append)
    if step == "numbered":
        monkeypatch.setattr(deliveries, "_record", die)
    elif step == "written":
        monkeypatch.setattr(deliveries, "_finish", die_later)
    elif step == "appended":
        monkeypatch.setattr(deliveries, "_mark_done", die_later)
    elif step == "done":
        monkeypatch.setattr(deliveries.staged, "remove", die_later)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_neither_loses_nor_repeats(broker, step, tmp_path, monkeypatch):
    """An accepted delivery is completed exactly once by a restart; others have no effect."""
    stage(broker, "before", x="0", y="0", z="0")
    assert deliver(broker, a_delivery(0, job="before", start=0, end=5))
    stage(broker, "job", x="1 2", y="3", z="4")
    crash_at(deliveries_of(broker), step, monkeypatch)
    with pytest.raises(Crash):
        deliver(broker, a_delivery(1, start=5))
    shutil.copytree(broker.data, tmp_path / "after")  # kill -9 keeps the page cache
    with Broker(tmp_path / "after", durability="os") as again:
        is_accepted = step != "numbered"
        whole = ["0", "0", "1", "2", "4"], ["0", "3"], 10
        found = words(again, "a"), words(again, "b"), cursor(again)
        assert found == (whole if is_accepted else (["0", "0"], ["0"], 5))
        assert deliver(again, a_delivery(1, start=5)) is not is_accepted
        assert (words(again, "a"), words(again, "b"), cursor(again)) == whole
        stage(again, "next", x="5", y="6", z="7")
        assert deliver(again, a_delivery(2, job="next", start=10, end=20))
        assert words(again, "a") == [*whole[0], "5", "7"]
        assert staged(again) == []


def test_an_upload_is_delivered_like_a_staged_file(broker):
    """Jobs without access to the data directory can upload their files over HTTP."""
    data = encode_batch([Record(0, 1, None, b"far")])
    broker.run(lambda: deliveries_of(broker).staged.upload("job", "x", data))
    assert deliver(broker, a_delivery(parts=[Part("a", 0, "x")]))
    assert words(broker, "a") == ["far"]


def test_a_caller_that_goes_away_leaves_a_delivery_that_goes_on(broker, monkeypatch):
    """A cancelled request does not cancel its delivery, so a second request appends nothing."""
    stage(broker, "job", x="1 2", y="3", z="4")
    deliveries, asked = deliveries_of(broker), hashed(broker, a_delivery())

    async def ask_leave_and_ask_again():
        is_submitted, may_end = asyncio.Event(), asyncio.Event()
        submit = deliveries._appender._produce.submit

        async def slow(*arguments, **options):
            outcome = submit(*arguments, **options)
            is_submitted.set()
            await may_end.wait()
            return await outcome

        monkeypatch.setattr(deliveries._appender._produce, "submit", slow)
        first = asyncio.ensure_future(deliveries.deliver(asked))
        await is_submitted.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(deliveries.deliver(asked))
        may_end.set()
        return await second

    assert broker.run(ask_leave_and_ask_again) is False
    assert (words(broker, "a"), words(broker, "b")) == (["1", "2", "4"], ["3"])


def test_a_part_that_cannot_be_appended_keeps_those_behind_it_out(broker, monkeypatch):
    """Otherwise the later parts' sequence numbers would mark the missing part as stored."""
    stage(broker, "job", x="1 2", y="3", z="4")
    deliveries = deliveries_of(broker)
    monkeypatch.setattr(deliveries._appender, "append_bytes", 1)
    submit, failures = deliveries._appender._produce.submit, [DiskFull("no space")]

    def failing(partition, *arguments, **options):
        if partition.tp.topic == "a" and failures:
            raise failures.pop()
        return submit(partition, *arguments, **options)

    monkeypatch.setattr(deliveries._appender._produce, "submit", failing)
    with pytest.raises(DiskFull):
        deliver(broker, a_delivery())
    assert (words(broker, "a"), words(broker, "b")) == ([], ["3"])
    assert deliver(broker, a_delivery()) is False
    assert (words(broker, "a"), words(broker, "b")) == (["1", "2", "4"], ["3"])


# --- leftovers ------------------------------------------------------------------------------------


def test_the_newest_file_tells_how_long_a_job_is_idle(tmp_path):
    """A job with one recently written file is not idle, however old its other files are."""
    for job, ages_s in (("at-work", (9000, 5)), ("dead", (9000, 8000))):
        for age_s in ages_s:
            path = tmp_path / "staging" / job / str(age_s)
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(b"x")
            os.utime(path, (1e9 - age_s, 1e9 - age_s))
        os.utime(path.parent, (1e9 - 9000, 1e9 - 9000))
    found = StagingArea(tmp_path).leftovers(int(1e12))
    assert sorted(found) == [("at-work", 5000), ("dead", 8_000_000)]
    assert StagingArea(tmp_path / "none").leftovers(0) == []


def make_old(job):
    """Set old times on a job's directory and its files."""
    for path in [*job.iterdir(), job]:
        os.utime(path, (1, 1))


def test_what_a_delivery_was_promised_is_not_swept(broker, monkeypatch):
    """The sweep keeps the files of an accepted delivery, however old they are."""
    stage(broker, "promised", x="1", y="2", z="3")
    crash_at(deliveries_of(broker), "written", monkeypatch)
    with pytest.raises(Crash):
        deliver(broker, a_delivery(job="promised"))
    stage(broker, "dead", x="4")
    for job in ("promised", "dead"):
        make_old(broker.data / "staging" / job)
    assert broker.run(deliveries_of(broker).sweep) == ["dead"]
    assert staged(broker) == ["promised"]


def test_a_start_sweeps_what_dead_jobs_left(broker, tmp_path, monkeypatch):
    """Files of dead jobs are removed at start-up. Accepted deliveries are completed first."""
    stage(broker, "promised", x="1", y="2", z="3")
    crash_at(deliveries_of(broker), "written", monkeypatch)
    with pytest.raises(Crash):
        deliver(broker, a_delivery(job="promised"))
    stage(broker, "dead", x="4")
    stage(broker, "alive", x="5")
    shutil.copytree(broker.data, tmp_path / "after")
    for job in ("promised", "dead"):
        make_old(tmp_path / "after" / "staging" / job)
    with Broker(tmp_path / "after", durability="os") as again:
        wait_until(lambda: "dead" not in staged(again), "the dead job is swept")
        assert staged(again) == ["alive"]
        assert (words(again, "a"), words(again, "b")) == (["1", "3"], ["2"])
