"""The writer: what is submitted together is committed together; a full disk and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.clock import SystemClock
from cordwood.config import TopicConfig
from cordwood.errors import DiskFull, ShuttingDown
from cordwood.log.files import Files, OpenFile
from cordwood.log.partition import Appended, Partition
from cordwood.log.writer import Append, Commit, Outcome, Writer
from cordwood.model import Record, TopicPartition


class FickleFiles(Files):
    """Refuses appends while it is full."""

    is_full = False

    def write_at(self, file: OpenFile, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full and file.path.suffix == ".log":
            raise DiskFull("no space")
        super().write_at(file, data, position)


class Desk:
    """Submits records and hears what became of them."""

    def __init__(self, directory: Path, **writer: object) -> None:
        self.files = FickleFiles()
        self.partition = Partition.open(
            directory / "t-0",
            TopicPartition("t", 0),
            TopicConfig(),
            files=self.files,
            clock=SystemClock(),
        )
        self.commits: list[Commit] = []
        self.settled = threading.Semaphore(0)
        self.outcomes: list[Outcome] = []
        self.writer = Writer("os", deliver=self._deliver, **writer)

    def _deliver(self, commit: Commit) -> None:
        self.commits.append(commit)
        commit.settle()

    def _done(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.settled.release()

    def submit(self, value: bytes, *, hold: bool = False, droppable: bool = False) -> None:
        data = bytearray(encode_batch([Record(0, 17, None, value)]))
        append = Append(self.partition, data, parse_headers(data), 1, self._done)
        append.hold, append.droppable = hold, droppable
        self.writer.submit(append)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.settled.acquire(timeout=30)


@pytest.fixture
def waking() -> list[Callable[[], None]]:
    """What was asked to be done soon."""
    return []


@pytest.fixture
def desk(tmp_path: Path, waking: list[Callable[[], None]]) -> Iterator[Desk]:
    """A writer that is woken when the test says so."""
    desk = Desk(tmp_path, soon=waking.append)
    desk.writer.start()
    yield desk
    desk.writer.close()
    desk.partition.close()


def test_one_turn_of_the_loop_is_one_commit(desk: Desk, waking: list[Callable[[], None]]):
    """Many sockets submit, the thread is woken once, and one commit takes them all, in order."""
    for n in range(64):
        desk.submit(b"%d" % n)
    assert len(waking) == 1
    waking.pop()()
    desk.wait(64)
    assert [len(commit.outcomes) for commit in desk.commits] == [64]
    assert [outcome.base_offset for outcome in desk.outcomes] == list(range(64))
    desk.submit(b"later")
    assert len(waking) == 1
    waking.pop()()
    desk.wait(1)


def test_close_writes_what_nobody_was_woken_for(desk: Desk):
    """A stop does not lose what was submitted in the same turn."""
    desk.submit(b"last")
    desk.writer.close()
    desk.wait(1)
    assert isinstance(desk.outcomes[0], Appended)
    with pytest.raises(ShuttingDown):
        desk.submit(b"too late")


def test_held_appends_wait_for_space_in_order(tmp_path: Path):
    """What may wait does, and is written before what comes after it; what may not hears at once."""
    desk = Desk(tmp_path)
    desk.writer.start()
    desk.files.is_full = True
    desk.submit(b"held 1", hold=True)
    desk.submit(b"refused")
    desk.wait(1)
    assert isinstance(desk.outcomes[0], DiskFull)
    assert desk.writer.stats.disk_full
    desk.submit(b"held 2", hold=True)
    desk.files.is_full = False
    desk.wait(2)
    desk.writer.close()
    assert [o.base_offset for o in desk.outcomes[1:] if isinstance(o, Appended)] == [0, 1]
    assert not desk.writer.stats.disk_full
    desk.partition.close()


def test_space_is_looked_for_when_nothing_waits(tmp_path: Path):
    """After a refusal with nothing held, the writer asks by itself until there is space."""
    has_space = threading.Event()
    asked = threading.Semaphore(0)

    def ask() -> bool:
        asked.release()
        return has_space.is_set()

    desk = Desk(tmp_path, has_space=ask)
    desk.writer.start()
    desk.files.is_full = True
    desk.submit(b"refused")
    desk.wait(1)
    assert asked.acquire(timeout=30)
    assert desk.writer.stats.disk_full
    has_space.set()
    assert asked.acquire(timeout=30)
    desk.writer.call(lambda: None).result(30)
    assert not desk.writer.stats.disk_full
    desk.writer.close()
    desk.partition.close()


def test_eviction_takes_the_oldest_that_may_go(desk: Desk, waking: list[Callable[[], None]]):
    """drop_oldest: nobody who waits for an answer loses it."""
    desk.submit(b"kept")
    desk.submit(b"gone 1", droppable=True)
    desk.submit(b"gone 2", droppable=True)
    desk.submit(b"stays", droppable=True)
    assert len(desk.writer.evict(2)) == 2
    assert desk.writer.waiting_records == 2
    waking.pop()()
    desk.wait(2)
    assert [len(commit.outcomes) for commit in desk.commits] == [2]
