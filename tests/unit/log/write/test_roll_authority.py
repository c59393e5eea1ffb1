"""Rolls that need an authority's grant: appends wait in order, other partitions continue."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.clock import SystemClock
from cordwood.config import TopicConfig
from cordwood.decide.roll import RollReason
from cordwood.errors import CordwoodError, ShuttingDown, UnavailableError
from cordwood.log.files.disk import Files
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended, Outcome, Partition
from cordwood.log.write.roll_authority import RollRequest
from cordwood.log.write.writer import Writer
from cordwood.model import Record, TopicPartition
from support.event_loops import ImmediateLoop


class LateAuthority:
    """Grants a roll when the test calls ``grant``."""

    def __init__(self) -> None:
        self.requests: list[RollRequest] = []
        self.asked = threading.Semaphore(0)
        self._grants: list[Future[None]] = []

    def request_roll(self, request: RollRequest) -> Future[None]:
        self.requests.append(request)
        self._grants.append(Future())
        self.asked.release()
        return self._grants[-1]

    def wait(self) -> None:
        assert self.asked.acquire(timeout=30)

    def grant(self, error: CordwoodError | None = None) -> None:
        if error is None:
            self._grants[-1].set_result(None)
        else:
            self._grants[-1].set_exception(error)


def batch(value: bytes) -> bytearray:
    return bytearray(encode_batch([Record(0, 17, b"k", value)]))


class Service:
    """A writer, a partition of two records per segment with delayed rolls, and a second partition.

    The second partition rolls without an authority.
    """

    def __init__(self, directory: Path) -> None:
        self.authority = LateAuthority()
        config = TopicConfig(segment_entries=2)
        self.rolling = self._open(directory / "t-0", 0, config, roll_authority=self.authority)
        self.other = self._open(directory / "t-1", 1, TopicConfig())
        self.outcomes: dict[bytes, Outcome] = {}
        self._replies = threading.Semaphore(0)
        self.writer = Writer("os")
        self.writer.start(ImmediateLoop())

    @staticmethod
    def _open(path: Path, number: int, config: TopicConfig, **more: object) -> Partition:
        tp = TopicPartition("t", number)
        return Partition.open(path, tp, config, files=Files(), clock=SystemClock(), **more)

    def submit(self, partition: Partition, *values: bytes) -> None:
        for value in values:
            data = batch(value)

            def done(outcome: Outcome, value: bytes = value) -> None:
                self.outcomes[value] = outcome
                self._replies.release()

            self.writer.submit(Append(partition, data, parse_headers(data), 1, done))

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._replies.acquire(timeout=30)

    def offsets(self) -> dict[bytes, int]:
        return {v: o.base_offset for v, o in self.outcomes.items() if isinstance(o, Appended)}

    def close(self) -> None:
        self.writer.close()
        self.writer.reply_all()
        self.rolling.close()
        self.other.close()


@pytest.fixture
def service(tmp_path: Path):
    service = Service(tmp_path)
    yield service
    service.close()


def test_a_roll_that_is_granted_late_keeps_order_and_offsets(service: Service):
    """Appends that wait for the grant are written to the new segment in submission order."""
    service.submit(service.rolling, b"a", b"b", b"c")
    service.authority.wait()
    service.submit(service.rolling, b"d")
    service.writer.call(lambda: None).result(30)  # the thread commits, but takes no append
    assert service.offsets() == {b"a": 0, b"b": 1}
    assert service.rolling.log_end_offset == 2
    assert service.writer.waiting_records == 2
    service.authority.grant()
    service.wait(4)
    assert service.offsets() == {b"a": 0, b"b": 1, b"c": 2, b"d": 3}
    assert [(s.base_offset, s.end_offset) for s in service.rolling.segments()] == [(0, 2), (2, 4)]
    assert service.authority.requests == [
        RollRequest(TopicPartition("t", 0), 0, 2, RollReason.ENTRIES)
    ]
    assert service.writer.waiting_records == service.writer.waiting_bytes == 0


def test_other_partitions_are_written_while_one_waits_for_its_roll(service: Service):
    """A slow grant for one partition does not delay the others."""
    service.submit(service.rolling, b"a", b"b", b"c")
    service.authority.wait()
    service.submit(service.other, b"x", b"y")
    service.wait(4)
    assert service.offsets() == {b"a": 0, b"b": 1, b"x": 0, b"y": 1}
    service.authority.grant()
    service.wait(1)
    assert service.offsets()[b"c"] == 2


def test_a_refused_roll_is_the_outcome_of_the_append_that_needed_it(service: Service):
    """If the roll is refused, the append fails and gets no offset; the next append asks again."""
    service.submit(service.rolling, b"a", b"b", b"c")
    service.authority.wait()
    refusal = UnavailableError("another node leads this partition")
    service.authority.grant(refusal)
    service.wait(3)
    assert service.outcomes[b"c"] is refusal
    service.submit(service.rolling, b"d")
    service.authority.wait()
    service.authority.grant()
    service.wait(1)
    assert service.offsets() == {b"a": 0, b"b": 1, b"d": 2}


def test_a_writer_that_closes_fails_the_appends_that_wait_for_a_roll(service: Service):
    """Closing does not wait for a grant, and every waiting append fails with ShuttingDown."""
    service.submit(service.rolling, b"a", b"b", b"c")
    service.authority.wait()
    service.writer.close()
    service.writer.reply_all()
    assert isinstance(service.outcomes[b"c"], ShuttingDown)


def test_a_partition_takes_nothing_between_the_request_and_the_grant(tmp_path: Path):
    """A segment accepts no appends after its roll is requested, also for a roll by an operator."""
    authority = LateAuthority()
    partition = Partition.open(
        tmp_path / "t-0", TopicPartition("t", 0), TopicConfig(), files=Files(),
        clock=SystemClock(), roll_authority=authority,
    )  # fmt: skip
    data = batch(b"a")
    partition.append(data, parse_headers(data))
    assert partition.roll(RollReason.DEMAND) is None
    data = batch(b"b")
    with pytest.raises(UnavailableError, match="waits for permission"):
        partition.append(data, parse_headers(data))
    authority.grant()
    assert partition.append(data, parse_headers(data)).base_offset == 1
    assert [s.base_offset for s in partition.segments()] == [0, 1]
    assert partition.cuts == {RollReason.DEMAND: 1}
    assert len(authority.requests) == 1
    partition.close()
