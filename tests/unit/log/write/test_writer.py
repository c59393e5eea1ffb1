"""The writer: group commit, inline writes, a full disk and shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.clock import SystemClock
from cordwood.config import TopicConfig
from cordwood.errors import DiskFull, ShuttingDown
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.write.commit import Append
from cordwood.log.write.partition import Appended, Outcome, Partition
from cordwood.log.write.writer import REPLIES_PER_TURN, SMALL_BYTES, EventLoop, Writer
from cordwood.model import Record, TopicPartition
from support.event_loops import ImmediateLoop, QueuedLoop, SteppedLoop


class FickleFiles(Files):
    """Fails appends while ``is_full`` is set, and syncs logs only while ``may_sync`` is set."""

    is_full = False

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.writers: list[threading.Thread] = []

    def sync_data(self, file: OpenFile) -> None:
        if file.path.suffix == ".log":
            assert self.may_sync.wait(30)
        super().sync_data(file)

    def write_at(self, file: OpenFile, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full and file.path.suffix == ".log":
            raise DiskFull("no space")
        self.writers.append(threading.current_thread())
        super().write_at(file, data, position)


class Service:
    """Submits records and collects their outcomes."""

    def __init__(
        self, directory: Path, durability: str = "os", loop: EventLoop | None = None, **writer: Any
    ) -> None:
        self.files = FickleFiles()
        self.partition = Partition.open(
            directory / "t-0",
            TopicPartition("t", 0),
            TopicConfig(),
            files=self.files,
            clock=SystemClock(),
        )
        self.commits: list[int] = []  # the number of outcomes of each commit
        self.settled = threading.Semaphore(0)
        self.outcomes: list[Outcome] = []
        self.loop = loop or ImmediateLoop()
        self.writer = Writer(durability, on_commit=self._on_commit, **writer)

    def start(self) -> None:
        self.writer.start(self.loop)

    def _on_commit(self, _: list[Partition]) -> None:
        self.commits.append(len(self.outcomes) - sum(self.commits))

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

    def stop(self) -> None:
        self.writer.close()
        self.partition.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A writer whose event loop turns end when the test ends them."""
    service = Service(tmp_path, loop=SteppedLoop())
    service.start()
    yield service
    service.stop()


def replies_by_turn(service: Service, loop: QueuedLoop, count: int) -> list[int]:
    """Run event loop turns until ``count`` replies are sent; return the replies of each turn."""
    replies = []
    while sum(replies) < count:
        before = len(service.outcomes)
        loop.turns.get(timeout=30)()
        replies.append(len(service.outcomes) - before)
    return [number for number in replies if number]


def test_a_commit_of_many_appends_is_replied_to_in_several_turns(tmp_path: Path):
    """One event loop turn sends a limited number of replies; all replies are sent in order."""
    loop = QueuedLoop()
    service = Service(tmp_path, loop=loop)
    service.start()
    count = 2 * REPLIES_PER_TURN + 5
    for n in range(count):
        service.submit(b"%d" % n)
    assert replies_by_turn(service, loop, count) == [REPLIES_PER_TURN, REPLIES_PER_TURN, 5]
    service.stop()
    offsets = [outcome.base_offset for outcome in service.outcomes if isinstance(outcome, Appended)]
    assert offsets == list(range(count))


def test_a_closed_writer_sends_the_remaining_replies_at_once(tmp_path: Path):
    """Closing the writer sends all replies that were left for later event loop turns."""
    loop = QueuedLoop()
    service = Service(tmp_path, loop=loop)
    service.start()
    for n in range(REPLIES_PER_TURN + 1):
        service.submit(b"%d" % n)
    assert replies_by_turn(service, loop, REPLIES_PER_TURN) == [REPLIES_PER_TURN]
    service.stop()
    service.writer.reply_all()
    assert len(service.outcomes) == REPLIES_PER_TURN + 1


def test_one_turn_of_the_loop_is_one_commit(service: Service):
    """Appends of one event loop turn wake the thread once and form one commit, in order."""
    for n in range(64):
        service.submit(b"%d" % n)
    assert len(service.loop.turn_ends) == 1
    service.loop.turn_ends.pop()()
    service.wait(64)
    assert service.commits == [64]
    assert [outcome.base_offset for outcome in service.outcomes] == list(range(64))
    service.submit(b"later")
    assert len(service.loop.turn_ends) == 1
    service.loop.turn_ends.pop()()
    service.wait(1)


def test_close_writes_what_nobody_was_woken_for(service: Service):
    """Closing the writer commits appends that were submitted in the same event loop turn."""
    service.submit(b"last")
    service.writer.close()
    service.wait(1)
    assert isinstance(service.outcomes[0], Appended)
    with pytest.raises(ShuttingDown):
        service.submit(b"too late")


def test_held_appends_wait_for_space_in_order(tmp_path: Path):
    """While the disk is full, held appends wait in order; other appends fail immediately."""
    service = Service(tmp_path)
    service.start()
    service.files.is_full = True
    service.submit(b"held 1", hold=True)
    service.submit(b"refused")
    service.wait(1)
    assert isinstance(service.outcomes[0], DiskFull)
    assert service.writer.stats.disk_full
    service.submit(b"held 2", hold=True)
    service.files.is_full = False
    service.wait(2)
    service.writer.close()
    assert [o.base_offset for o in service.outcomes[1:] if isinstance(o, Appended)] == [0, 1]
    assert not service.writer.stats.disk_full
    service.partition.close()


@pytest.mark.parametrize("stored", [0, 1], ids=["by the thread", "inline"])
def test_space_is_looked_for_when_nothing_waits(tmp_path: Path, stored: int):
    """After a disk-full error the writer checks for space by itself, even if no append waits."""
    has_space = threading.Event()
    asked = threading.Semaphore(0)

    def ask() -> bool:
        asked.release()
        return has_space.is_set()

    service = Service(tmp_path, has_space=ask)
    service.start()
    for _ in range(stored):
        service.submit(b"first")
    service.wait(stored)
    service.files.is_full = True
    service.submit(b"refused")
    service.wait(1)
    assert asked.acquire(timeout=30)
    assert service.writer.stats.disk_full
    has_space.set()
    assert asked.acquire(timeout=30)
    service.writer.call(lambda: None).result(30)
    assert not service.writer.stats.disk_full
    service.writer.close()
    service.partition.close()


def test_eviction_takes_the_oldest_that_may_go(service: Service):
    """Eviction removes the oldest droppable appends and no others."""
    service.submit(b"kept")
    service.submit(b"gone 1", droppable=True)
    service.submit(b"gone 2", droppable=True)
    service.submit(b"stays", droppable=True)
    assert len(service.writer.evict(2)) == 2
    assert service.writer.waiting_records == 2
    service.loop.turn_ends.pop()()
    service.wait(2)
    assert service.commits == [2]


# --- inline writes -----------------------------------------------------------------------------


def settled_service(directory: Path, durability: str = "os", **config: object) -> Service:
    """Return a running service that has stored its first record, so a segment and epoch exist."""
    service = Service(directory, durability)
    service.partition.config = TopicConfig(**config)
    service.start()
    service.submit(b"first")
    service.wait(1)
    service.files.writers.clear()
    return service


def test_what_needs_no_sync_is_committed_before_submit_returns(tmp_path: Path):
    """Without fsync, one append is written inline and published before ``submit`` returns."""
    service = settled_service(tmp_path)
    service.submit(b"second")
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1]
    assert service.partition.high_watermark == 2
    assert service.files.writers == [threading.current_thread()]
    service.stop()


def test_appends_are_acknowledged_and_visible_only_after_the_sync(tmp_path: Path):
    """With fsync, bytes are written inline; replies and the high watermark wait for the sync."""
    service = settled_service(tmp_path, "fsync")
    service.files.may_sync.clear()
    service.submit(b"second")
    assert service.files.writers == [threading.current_thread()]
    assert service.partition.log_end_offset == 2
    assert service.partition.high_watermark == 1
    assert len(service.outcomes) == 1
    service.submit(b"third")  # queued, because a sync is under way
    assert service.partition.log_end_offset == 2
    service.files.may_sync.set()
    service.wait(2)
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1, 2]
    assert service.partition.high_watermark == 3
    service.stop()


def test_nothing_is_written_inline_while_the_thread_is_at_work(tmp_path: Path):
    """While the writer thread runs a call, appends are queued and not written inline."""
    service = settled_service(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    call = service.writer.call(lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    service.submit(b"second")
    assert not service.files.writers
    leave.set()
    service.wait(1)
    assert call.result(30)
    assert service.outcomes[-1].base_offset == 1
    service.stop()


@pytest.mark.parametrize(
    ("config", "value"),
    [({"segment_entries": 1}, b"small"), ({}, bytes(SMALL_BYTES))],
    ids=["a roll", "a large append"],
)
def test_what_takes_long_is_left_to_the_thread(tmp_path: Path, config, value):
    """Appends that need a roll and large appends go to the thread, to keep the event loop free."""
    service = settled_service(tmp_path, **config)
    service.submit(value)
    service.wait(1)
    assert isinstance(service.outcomes[-1], Appended)
    assert threading.current_thread() not in service.files.writers
    service.stop()


def test_a_mistake_in_an_inline_write_ends_the_thread_too(tmp_path: Path, monkeypatch):
    """An assertion error in an inline write also stops the writer thread."""
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    service = settled_service(tmp_path)
    monkeypatch.setattr(service.partition, "append_all", lambda _: [])
    with pytest.raises(AssertionError, match="only a roll"):
        service.submit(b"second")
    assert died.wait(30)
    service.stop()


def test_an_idle_callback_runs_at_once_when_nobody_writes(tmp_path: Path):
    """An idle callback runs immediately if the writer is idle, and its append is written inline."""
    service = settled_service(tmp_path)
    service.writer.on_writer_idle(lambda: service.submit(b"second"))
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1]
    service.stop()


def test_an_idle_callback_waits_for_a_sync_and_is_one_commit_after_it(tmp_path: Path):
    """An idle callback runs after the sync, and all appends it submits form one commit."""
    service = settled_service(tmp_path, "fsync")
    service.files.may_sync.clear()
    service.submit(b"second")
    gathered = [b"third"]
    service.writer.on_writer_idle(lambda: [service.submit(value) for value in gathered])
    gathered.append(b"fourth")
    assert service.writer.waiting_records == 0
    service.files.may_sync.set()
    service.wait(3)
    assert service.commits == [1, 1, 2]
    service.stop()


def test_an_idle_callback_given_during_a_call_runs_after_it(tmp_path: Path):
    """An idle callback added during a call runs after the call, without waiting for a commit."""
    service = settled_service(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    service.writer.call(lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    service.writer.on_writer_idle(lambda: service.submit(b"second"))
    assert len(service.outcomes) == 1
    leave.set()
    service.wait(1)
    assert service.outcomes[-1].base_offset == 1
    service.stop()
