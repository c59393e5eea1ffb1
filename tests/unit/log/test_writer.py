"""The writer: what is submitted together is committed together; a full disk and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.clock import SystemClock
from cordwood.config import TopicConfig
from cordwood.errors import DiskFull, ShuttingDown
from cordwood.log.commit import Append, Commit
from cordwood.log.files import Files, OpenFile
from cordwood.log.partition import Appended, Outcome, Partition
from cordwood.log.writer import SMALL_BYTES, TOLD_AT_ONCE, Writer
from cordwood.model import Record, TopicPartition


class FickleFiles(Files):
    """Refuses appends while it is full, and syncs logs when it may."""

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


class Desk:
    """Submits records and hears what became of them."""

    def __init__(self, directory: Path, durability: str = "os", **writer: object) -> None:
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
        self.turn = threading.RLock()  # one event loop: nobody's turn begins in another's
        given = {"post": self._in_turn, "soon": self._in_turn} | writer
        self.writer = Writer(durability, deliver=self._deliver, **given)

    def _in_turn(self, act: Callable[[], None]) -> None:
        with self.turn:
            act()

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

    def stop(self) -> None:
        self.writer.close()
        self.partition.close()


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
    desk.stop()


def told_by_turn(desk: Desk, turns: Queue[Callable[[], None]], count: int) -> list[int]:
    """Run turns of a loop until so many appends were told of; how many each of them told."""
    told = []
    while sum(told) < count:
        before = len(desk.outcomes)
        turns.get(timeout=30)()
        told.append(len(desk.outcomes) - before)
    return [number for number in told if number]


def test_a_commit_of_many_appends_is_told_in_several_turns(tmp_path: Path):
    """No turn of the loop tells more than its share, all are told, in order."""
    turns: Queue[Callable[[], None]] = Queue()
    desk = Desk(tmp_path, soon=turns.put, post=turns.put)
    desk.writer.start()
    count = 2 * TOLD_AT_ONCE + 5
    for n in range(count):
        desk.submit(b"%d" % n)
    assert told_by_turn(desk, turns, count) == [TOLD_AT_ONCE, TOLD_AT_ONCE, 5]
    desk.stop()
    offsets = [outcome.base_offset for outcome in desk.outcomes if isinstance(outcome, Appended)]
    assert offsets == list(range(count))


def test_a_closed_writer_tells_what_is_left_at_once(tmp_path: Path):
    """A stop loses no answer because it would have come in a later turn."""
    turns: Queue[Callable[[], None]] = Queue()
    desk = Desk(tmp_path, soon=turns.put, post=turns.put)
    desk.writer.start()
    for n in range(TOLD_AT_ONCE + 1):
        desk.submit(b"%d" % n)
    assert told_by_turn(desk, turns, TOLD_AT_ONCE) == [TOLD_AT_ONCE]
    desk.stop()
    desk.writer.tell_rest()
    assert len(desk.outcomes) == TOLD_AT_ONCE + 1


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


@pytest.mark.parametrize("stored", [0, 1], ids=["by the thread", "on the spot"])
def test_space_is_looked_for_when_nothing_waits(tmp_path: Path, stored: int):
    """After a refusal with nothing held, the writer asks by itself until there is space."""
    has_space = threading.Event()
    asked = threading.Semaphore(0)

    def ask() -> bool:
        asked.release()
        return has_space.is_set()

    desk = Desk(tmp_path, has_space=ask)
    desk.writer.start()
    for _ in range(stored):
        desk.submit(b"first")
    desk.wait(stored)
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


# --- on the spot ------------------------------------------------------------------------------


def settled_desk(directory: Path, durability: str = "os", **config: object) -> Desk:
    """A running desk whose first record, which begins a segment and a term, is stored."""
    desk = Desk(directory, durability)
    desk.partition.config = TopicConfig(**config)
    desk.writer.start()
    desk.submit(b"first")
    desk.wait(1)
    desk.files.writers.clear()
    return desk


def test_what_needs_no_sync_is_committed_before_submit_returns(tmp_path: Path):
    """One message, no other thread: the answer is there, and readers see the record."""
    desk = settled_desk(tmp_path)
    desk.submit(b"second")
    assert [outcome.base_offset for outcome in desk.outcomes] == [0, 1]
    assert desk.partition.high_watermark == 2
    assert desk.files.writers == [threading.current_thread()]
    desk.stop()


def test_what_is_synced_is_told_and_seen_after_the_sync_only(tmp_path: Path):
    """The bytes are written on the spot; until they are on the device nobody hears of them."""
    desk = settled_desk(tmp_path, "fsync")
    desk.files.may_sync.clear()
    desk.submit(b"second")
    assert desk.files.writers == [threading.current_thread()]
    assert desk.partition.next_offset == 2
    assert desk.partition.high_watermark == 1
    assert len(desk.outcomes) == 1
    desk.submit(b"third")  # waits for the sync: somebody is the writer
    assert desk.partition.next_offset == 2
    desk.files.may_sync.set()
    desk.wait(2)
    assert [outcome.base_offset for outcome in desk.outcomes] == [0, 1, 2]
    assert desk.partition.high_watermark == 3
    desk.stop()


def test_nothing_is_written_on_the_spot_while_the_thread_is_at_work(tmp_path: Path):
    """A roll, a swap, a topic's birth: whatever changes partitions does so alone."""
    desk = settled_desk(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    call = desk.writer.call(lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    desk.submit(b"second")
    assert not desk.files.writers
    leave.set()
    desk.wait(1)
    assert call.result(30)
    assert desk.outcomes[-1].base_offset == 1
    desk.stop()


@pytest.mark.parametrize(
    ("config", "value"),
    [({"segment_entries": 1}, b"small"), ({}, bytes(SMALL_BYTES))],
    ids=["a roll", "a large append"],
)
def test_what_takes_long_is_left_to_the_thread(tmp_path: Path, config, value):
    """A submitter is an event loop: it never waits for a roll's files, nor copies megabytes."""
    desk = settled_desk(tmp_path, **config)
    desk.submit(value)
    desk.wait(1)
    assert isinstance(desk.outcomes[-1], Appended)
    assert threading.current_thread() not in desk.files.writers
    desk.stop()


def test_a_mistake_on_the_spot_ends_the_thread_too(tmp_path: Path, monkeypatch):
    """No writer is left that would take appends and never answer them."""
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    desk = settled_desk(tmp_path)
    monkeypatch.setattr(desk.partition, "append_all", lambda _: [])
    with pytest.raises(ValueError, match="zip"):
        desk.submit(b"second")
    assert died.wait(30)
    desk.stop()


def test_an_offer_is_taken_at_once_when_nobody_writes(tmp_path: Path):
    """What it submits is committed in the same turn."""
    desk = settled_desk(tmp_path)
    desk.writer.offer(lambda: desk.submit(b"second"))
    assert [outcome.base_offset for outcome in desk.outcomes] == [0, 1]
    desk.stop()


def test_an_offer_waits_for_a_sync_and_is_one_commit_after_it(tmp_path: Path):
    """Whatever gathers meanwhile is submitted together, and not a moment before it can be used."""
    desk = settled_desk(tmp_path, "fsync")
    desk.files.may_sync.clear()
    desk.submit(b"second")
    gathered = [b"third"]
    desk.writer.offer(lambda: [desk.submit(value) for value in gathered])
    gathered.append(b"fourth")
    assert desk.writer.waiting_records == 0
    desk.files.may_sync.set()
    desk.wait(3)
    assert [len(commit.outcomes) for commit in desk.commits] == [1, 1, 2]
    desk.stop()


def test_an_offer_made_during_a_call_is_taken_after_it(tmp_path: Path):
    """No commit follows that would bring it to mind."""
    desk = settled_desk(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    desk.writer.call(lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    desk.writer.offer(lambda: desk.submit(b"second"))
    assert len(desk.outcomes) == 1
    leave.set()
    desk.wait(1)
    assert desk.outcomes[-1].base_offset == 1
    desk.stop()
