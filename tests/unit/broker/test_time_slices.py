"""Long work on the event loop yields to other tasks after each time slice."""

from __future__ import annotations

import asyncio
import json

from prometheus_client.parser import text_string_to_metric_families

from cordwood.broker.exposition import render, render_json
from cordwood.broker.metrics import METRICS, Sample
from cordwood.broker.time_slices import RequestSlices, TimeSlice, in_slices
from cordwood.log.write.commit import CommitStats

PARTITIONS = 300


class Ticking:
    """A clock that advances one millisecond at each call."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


def many_samples(noted):
    """Yield the samples of a scrape of many partitions; note each one as it is taken."""
    for number in range(PARTITIONS):
        labels = {"topic": 'a "quoted"\\topic', "partition": str(number)}
        for name in ("cordwood_log_start_offset", "cordwood_high_watermark"):
            noted.append(number)
            yield Sample(name, number * 10**6, labels)
    yield Sample("cordwood_info", 1, {"version": "x"})
    yield Sample("cordwood_disk_full", 0)


async def longest_run(work, noted):
    """Run ``work``; return its result and the most notes between two turns of another callback."""
    loop = asyncio.get_running_loop()
    runs, seen, is_over = [], 0, False

    def other():
        nonlocal seen
        runs.append(len(noted) - seen)
        seen = len(noted)
        if not is_over:
            loop.call_soon(other)

    loop.call_soon(other)
    result = await work
    is_over = True
    return result, max(runs)


def test_a_request_of_dear_items_gives_way_by_time_however_few_they_are():
    """A request of few but expensive items yields by time, before its item limit is reached."""

    async def story():
        noted = []

        def items():
            for item in range(10):
                noted.append(item)
                yield item

        turns = RequestSlices(turn_items=200, turn=TimeSlice(0.004, Ticking()))
        found, longest = await longest_run(turns.map(str, items()), noted)
        assert found == [str(item) for item in range(10)]
        assert longest <= 5

    asyncio.run(story())


def test_others_are_served_after_every_turn():
    """Ten steps of one millisecond in four-millisecond slices yield after every slice."""

    async def story():
        noted = []

        def items():
            for item in range(10):
                noted.append(item)
                yield item

        async def work():
            return [item async for item in in_slices(items(), TimeSlice(0.004, Ticking()))]

        found, longest = await longest_run(work(), noted)
        assert found == list(range(10))
        assert longest <= 5

    asyncio.run(story())


def test_a_scrape_is_read_and_written_in_turns():
    """Rendering text or JSON yields to other callbacks after every time slice."""

    async def story(renderer):
        noted = []
        turn = TimeSlice(0.005, Ticking())
        work = renderer(many_samples(noted), CommitStats(), turn)
        _, longest = await longest_run(work, noted)
        assert len(noted) == 2 * PARTITIONS
        assert longest <= 6

    asyncio.run(story(render))
    asyncio.run(story(render_json))


def test_the_text_is_what_prometheus_reads():
    """The reference parser reads every sample with its value, labels, help and type."""
    text = asyncio.run(render(many_samples([]), CommitStats(syncs=1, sync_seconds=0.5))).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    watermarks = families["cordwood_high_watermark"]
    assert watermarks.documentation == METRICS["cordwood_high_watermark"].doc
    assert watermarks.type == "gauge"
    assert [sample.value for sample in watermarks.samples] == [
        number * 10**6 for number in range(PARTITIONS)
    ]
    assert watermarks.samples[7].labels == {"topic": 'a "quoted"\\topic', "partition": "7"}
    assert families["cordwood_disk_full"].samples[0].labels == {}
    assert families["cordwood_fsync_seconds"].type == "histogram"
    assert text.count("# TYPE cordwood_high_watermark ") == 1


def test_counters_are_named_as_before():
    """A counter's sample has its name from the metrics table and parses as a counter."""
    text = asyncio.run(render([Sample("cordwood_commits_total", 3)], CommitStats())).decode()
    (family,) = [f for f in text_string_to_metric_families(text) if f.type == "counter"]
    assert [(s.name, s.value) for s in family.samples] == [("cordwood_commits_total", 3.0)]


def test_the_json_is_one_line_with_every_sample():
    """Labelled samples are lists; samples without labels are numbers."""
    text = asyncio.run(render_json(many_samples([]), CommitStats(syncs=2, sync_seconds=0.5)))
    found = json.loads(text)
    assert b"\n" not in text
    assert found["cordwood_disk_full"] == 0
    assert len(found["cordwood_high_watermark"]) == PARTITIONS
    assert found["cordwood_high_watermark"][3] == {
        "topic": 'a "quoted"\\topic',
        "partition": "3",
        "value": 3 * 10**6,
    }
    assert found["cordwood_fsync_seconds"] == {"count": 2, "sum": 0.5}
