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
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.write.commit import Append, Commit
from cordwood.log.write.partition import Appended, Outcome, Partition
from cordwood.log.write.writer import SMALL_BYTES, TOLD_AT_ONCE, Writer
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


class Service:
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
def service(tmp_path: Path, waking: list[Callable[[], None]]) -> Iterator[Service]:
    """A writer that is woken when the test says so."""
    service = Service(tmp_path, soon=waking.append)
    service.writer.start()
    yield service
    service.stop()


def told_by_turn(service: Service, turns: Queue[Callable[[], None]], count: int) -> list[int]:
    """Run turns of a loop until so many appends were told of; how many each of them told."""
    told = []
    while sum(told) < count:
        before = len(service.outcomes)
        turns.get(timeout=30)()
        told.append(len(service.outcomes) - before)
    return [number for number in told if number]


def test_a_commit_of_many_appends_is_told_in_several_turns(tmp_path: Path):
    """No turn of the loop tells more than its share, all are told, in order."""
    turns: Queue[Callable[[], None]] = Queue()
    service = Service(tmp_path, soon=turns.put, post=turns.put)
    service.writer.start()
    count = 2 * TOLD_AT_ONCE + 5
    for n in range(count):
        service.submit(b"%d" % n)
    assert told_by_turn(service, turns, count) == [TOLD_AT_ONCE, TOLD_AT_ONCE, 5]
    service.stop()
    offsets = [outcome.base_offset for outcome in service.outcomes if isinstance(outcome, Appended)]
    assert offsets == list(range(count))


def test_a_closed_writer_tells_what_is_left_at_once(tmp_path: Path):
    """A stop loses no answer because it would have come in a later turn."""
    turns: Queue[Callable[[], None]] = Queue()
    service = Service(tmp_path, soon=turns.put, post=turns.put)
    service.writer.start()
    for n in range(TOLD_AT_ONCE + 1):
        service.submit(b"%d" % n)
    assert told_by_turn(service, turns, TOLD_AT_ONCE) == [TOLD_AT_ONCE]
    service.stop()
    service.writer.tell_rest()
    assert len(service.outcomes) == TOLD_AT_ONCE + 1


def test_one_turn_of_the_loop_is_one_commit(service: Service, waking: list[Callable[[], None]]):
    """Many sockets submit, the thread is woken once, and one commit takes them all, in order."""
    for n in range(64):
        service.submit(b"%d" % n)
    assert len(waking) == 1
    waking.pop()()
    service.wait(64)
    assert [len(commit.outcomes) for commit in service.commits] == [64]
    assert [outcome.base_offset for outcome in service.outcomes] == list(range(64))
    service.submit(b"later")
    assert len(waking) == 1
    waking.pop()()
    service.wait(1)


def test_close_writes_what_nobody_was_woken_for(service: Service):
    """A stop does not lose what was submitted in the same turn."""
    service.submit(b"last")
    service.writer.close()
    service.wait(1)
    assert isinstance(service.outcomes[0], Appended)
    with pytest.raises(ShuttingDown):
        service.submit(b"too late")


def test_held_appends_wait_for_space_in_order(tmp_path: Path):
    """What may wait does, and is written before what comes after it; what may not hears at once."""
    service = Service(tmp_path)
    service.writer.start()
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


@pytest.mark.parametrize("stored", [0, 1], ids=["by the thread", "on the spot"])
def test_space_is_looked_for_when_nothing_waits(tmp_path: Path, stored: int):
    """After a refusal with nothing held, the writer asks by itself until there is space."""
    has_space = threading.Event()
    asked = threading.Semaphore(0)

    def ask() -> bool:
        asked.release()
        return has_space.is_set()

    service = Service(tmp_path, has_space=ask)
    service.writer.start()
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


def test_eviction_takes_the_oldest_that_may_go(service: Service, waking: list[Callable[[], None]]):
    """drop_oldest: nobody who waits for an answer loses it."""
    service.submit(b"kept")
    service.submit(b"gone 1", droppable=True)
    service.submit(b"gone 2", droppable=True)
    service.submit(b"stays", droppable=True)
    assert len(service.writer.evict(2)) == 2
    assert service.writer.waiting_records == 2
    waking.pop()()
    service.wait(2)
    assert [len(commit.outcomes) for commit in service.commits] == [2]


# --- on the spot ------------------------------------------------------------------------------


def settled_service(directory: Path, durability: str = "os", **config: object) -> Service:
    """A running service whose first record, which begins a segment and a term, is stored."""
    service = Service(directory, durability)
    service.partition.config = TopicConfig(**config)
    service.writer.start()
    service.submit(b"first")
    service.wait(1)
    service.files.writers.clear()
    return service


def test_what_needs_no_sync_is_committed_before_submit_returns(tmp_path: Path):
    """One message, no other thread: the answer is there, and readers see the record."""
    service = settled_service(tmp_path)
    service.submit(b"second")
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1]
    assert service.partition.high_watermark == 2
    assert service.files.writers == [threading.current_thread()]
    service.stop()


def test_what_is_synced_is_told_and_seen_after_the_sync_only(tmp_path: Path):
    """The bytes are written on the spot; until they are on the device nobody hears of them."""
    service = settled_service(tmp_path, "fsync")
    service.files.may_sync.clear()
    service.submit(b"second")
    assert service.files.writers == [threading.current_thread()]
    assert service.partition.next_offset == 2
    assert service.partition.high_watermark == 1
    assert len(service.outcomes) == 1
    service.submit(b"third")  # waits for the sync: somebody is the writer
    assert service.partition.next_offset == 2
    service.files.may_sync.set()
    service.wait(2)
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1, 2]
    assert service.partition.high_watermark == 3
    service.stop()


def test_nothing_is_written_on_the_spot_while_the_thread_is_at_work(tmp_path: Path):
    """A roll, a swap, a topic's birth: whatever changes partitions does so alone."""
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
    """A submitter is an event loop: it never waits for a roll's files, nor copies megabytes."""
    service = settled_service(tmp_path, **config)
    service.submit(value)
    service.wait(1)
    assert isinstance(service.outcomes[-1], Appended)
    assert threading.current_thread() not in service.files.writers
    service.stop()


def test_a_mistake_on_the_spot_ends_the_thread_too(tmp_path: Path, monkeypatch):
    """No writer is left that would take appends and never answer them."""
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    service = settled_service(tmp_path)
    monkeypatch.setattr(service.partition, "append_all", lambda _: [])
    with pytest.raises(ValueError, match="zip"):
        service.submit(b"second")
    assert died.wait(30)
    service.stop()


def test_an_offer_is_taken_at_once_when_nobody_writes(tmp_path: Path):
    """What it submits is committed in the same turn."""
    service = settled_service(tmp_path)
    service.writer.offer(lambda: service.submit(b"second"))
    assert [outcome.base_offset for outcome in service.outcomes] == [0, 1]
    service.stop()


def test_an_offer_waits_for_a_sync_and_is_one_commit_after_it(tmp_path: Path):
    """Whatever gathers meanwhile is submitted together, and not a moment before it can be used."""
    service = settled_service(tmp_path, "fsync")
    service.files.may_sync.clear()
    service.submit(b"second")
    gathered = [b"third"]
    service.writer.offer(lambda: [service.submit(value) for value in gathered])
    gathered.append(b"fourth")
    assert service.writer.waiting_records == 0
    service.files.may_sync.set()
    service.wait(3)
    assert [len(commit.outcomes) for commit in service.commits] == [1, 1, 2]
    service.stop()


def test_an_offer_made_during_a_call_is_taken_after_it(tmp_path: Path):
    """No commit follows that would bring it to mind."""
    service = settled_service(tmp_path)
    entered, leave = threading.Event(), threading.Event()
    service.writer.call(lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    service.writer.offer(lambda: service.submit(b"second"))
    assert len(service.outcomes) == 1
    leave.set()
    service.wait(1)
    assert service.outcomes[-1].base_offset == 1
    service.stop()
