"""Long work on the event loop gives way to others, and no step of it takes all there is."""

from __future__ import annotations

import asyncio
import json

from prometheus_client.parser import text_string_to_metric_families

from cordwood.broker.exposition import render, render_json
from cordwood.broker.kafka.time_slices import RequestSlices
from cordwood.broker.metrics import METRICS, Sample
from cordwood.broker.time_slices import TimeSlice, in_slices
from cordwood.log.write.commit import CommitStats

PARTITIONS = 300


class Ticking:
    """A clock that moves on a millisecond with every look at it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


def many_samples(noted):
    """What a scrape of many partitions reads; notes each as it is taken."""
    for number in range(PARTITIONS):
        labels = {"topic": 'a "quoted"\\topic', "partition": str(number)}
        for name in ("cordwood_log_start_offset", "cordwood_high_watermark"):
            noted.append(number)
            yield Sample(name, number * 10**6, labels)
    yield Sample("cordwood_info", 1, {"version": "x"})
    yield Sample("cordwood_disk_full", 0)


async def longest_run(work, noted):
    """Run ``work``; the most notes made between two turns of somebody else on the loop."""
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
    """Kafka's handlers count items; ten dear ones are a turn too."""

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
    """Ten steps of a millisecond, turns of four: nobody waits for more than one turn."""

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
    """Neither format takes more samples at a time than a turn has room for."""

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
    """Every sample, with its value, labels, help and kind, by the reference parser."""
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
    """The name in the table is the name of the sample, and prometheus knows it for a counter."""
    text = asyncio.run(render([Sample("cordwood_commits_total", 3)], CommitStats())).decode()
    (family,) = [f for f in text_string_to_metric_families(text) if f.type == "counter"]
    assert [(s.name, s.value) for s in family.samples] == [("cordwood_commits_total", 3.0)]


def test_the_json_is_one_line_with_every_sample():
    """Labelled samples are lists, the others numbers."""
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
