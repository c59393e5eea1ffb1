"""Fetch planning for a partition before any read, and the execution of a plan."""

from __future__ import annotations

import pytest

from cordwood.broker.kafka.fetch_plan import (
    LOOP_BYTES,
    FetchRun,
    PartitionLoad,
    PartitionRead,
    plan_partition,
)
from cordwood.codes import Code
from cordwood.protocol.kafka.messages.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)


class Log:
    """A partition with records from 5 to 20, stable up to 15, in batches of 100 bytes."""

    log_start_offset, last_stable_offset, high_watermark = 5, 15, 20

    def __init__(self, *, is_open=True, is_resident=True):
        self.is_open = is_open
        self.is_cached = is_resident
        self.limits = []

    def is_resident(self, _offset, _bytes_max):
        return self.is_cached

    def read(self, offset, bytes_max, *, end_offset):
        assert offset < end_offset
        self.limits.append(bytes_max)
        return Read(bytes(max(100, bytes_max // 100 * 100)))


class Read:
    high_watermark, last_stable_offset, log_start_offset, next_offset = 20, 15, 5, 20

    def __init__(self, data):
        self.data = data


def plan(log, offset, *, is_committed=False, bytes_max=1_000):
    part = FetchPartition(0, fetch_offset=offset, partition_max_bytes=bytes_max)
    return plan_partition(log, part, is_committed=is_committed)


def run(steps, *, max_bytes=10_000, min_bytes=1):
    wanted = [FetchTopic("t", partitions=[FetchPartition(n) for n in range(len(steps))])]
    request = FetchRequest(-1, 0, min_bytes, max_bytes, 0, topics=wanted)
    return FetchRun(request, steps, share_bytes=2**20)


def sizes(done):
    return [len(part.records) for part in done.response().topics[0].partitions]


def test_a_read_is_planned_up_to_the_high_watermark():
    """The read starts at the fetch offset and is limited to the requested bytes."""
    log = Log()
    assert plan(log, 5) == PartitionRead(log, 0, 5, 20, 1_000, is_committed=False)


def test_committed_reads_end_at_the_last_stable_offset():
    """A reader at the last stable offset gets an empty answer without a read."""
    assert plan(Log(), 14, is_committed=True).end == 15
    answer = plan(Log(), 15, is_committed=True)
    assert (answer.error_code, answer.records, answer.aborted_transactions) == (0, b"", [])


@pytest.mark.parametrize("offset", [4, 21])
def test_an_offset_outside_the_log_is_answered_without_a_read(offset):
    """The answer contains the log's bounds, so that the client can reset its offset."""
    answer = plan(Log(), offset)
    assert answer == FetchedPartition(0, Code.OFFSET_OUT_OF_RANGE, 20, log_start_offset=5)


def test_an_unopened_partition_is_planned_after_its_files_are_opened():
    """Opening may read the disk, so it happens on a thread and not on the event loop."""
    log = Log(is_open=False)
    assert isinstance(plan(log, 5), PartitionLoad)
    assert not run([plan(log, 5)]).advance()


def test_partitions_share_the_bytes_of_the_request_in_its_order():
    """The first partition gets all it asks for. Once the bytes are used up, the rest get none."""
    log = Log()
    done = run([plan(log, 5)] * 3, max_bytes=1_500)
    assert done.advance()
    assert sizes(done) == [1_000, 500, 0]
    assert log.limits == [1_000, 500]


def test_a_request_for_more_than_the_loop_may_read_is_read_on_a_thread():
    """The event loop's read limit is below the request's minimum, so a thread reads."""
    assert not run([plan(Log(), 5)], min_bytes=LOOP_BYTES + 1).advance()


async def test_what_is_not_in_the_page_cache_is_read_on_a_thread_and_the_order_stays():
    """The run stops before a read that needs the disk, and a thread continues in the same order."""
    steps = [plan(Log(), 5), plan(Log(is_resident=False), 5, bytes_max=300), plan(Log(), 5)]
    begun = run(steps)
    assert not begun.advance()
    assert sizes(await begun.finish()) == [1_000, 300, 1_000]
