"""Ingress flow control, without sockets: which reasons pause a connection, and what resumes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cordwood.broker.ingest.flow_control import (
    FlowControl,
    IngressBuffer,
    IngressStats,
    PauseReason,
)
from cordwood.errors import Overloaded

LINES_MAX = 10
BYTES_MAX = 1000
ENCODING_BYTES_MAX = 100


class FakeSocket:
    """A socket that records whether it is read; processing its events checks the flow control."""

    def __init__(self, buffer: IngressBuffer) -> None:
        self.is_read = True
        self.processed = 0
        self.flow = FlowControl(buffer, self)

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def process_events(self) -> None:
        self.processed += 1
        self.flow.check()


class Load:
    """A buffer between a writer and an encoder whose load the test sets."""

    def __init__(self, *, drops_oldest: bool = False) -> None:
        self.waiting = []
        self.queue = SimpleNamespace(records=0, bytes=0)
        self.writer = SimpleNamespace(queue=self.queue, evict=self._evict)
        self.encoder = SimpleNamespace(lines=0, bytes=0)
        self.stats = IngressStats()
        self.buffer = IngressBuffer(
            self.writer,
            self.encoder,
            self.stats,
            lines_max=LINES_MAX,
            drops_oldest=drops_oldest,
            bytes_max=BYTES_MAX,
            encoding_bytes_max=ENCODING_BYTES_MAX,
        )

    def _evict(self, count: int) -> list[SimpleNamespace]:
        evicted, self.waiting = self.waiting[:count], self.waiting[count:]
        return evicted


def test_a_socket_is_read_again_when_the_last_reason_is_gone():
    """A socket resumes only when all pause reasons are gone, in any order."""
    socket = FakeSocket(Load().buffer)
    socket.flow.pause(PauseReason.HELLO)
    socket.flow.pause(PauseReason.UNREAD_REPLIES)
    socket.flow.resume(PauseReason.HELLO)
    assert not socket.is_read
    socket.flow.resume(PauseReason.UNREAD_REPLIES)
    assert socket.is_read


@pytest.mark.parametrize(
    ("reason", "takes_events", "is_kept_waiting"),
    [
        (PauseReason.OPENING, False, False),
        (PauseReason.HELLO, False, True),
        (PauseReason.BAD_LINES, False, True),
        (PauseReason.BUFFER_FULL, True, True),
        (PauseReason.UNREAD_REPLIES, True, False),
        (PauseReason.STOPPING, True, False),
    ],
)
def test_each_reason_says_what_it_means_for_the_connection(reason, takes_events, is_kept_waiting):
    """A reason decides whether events are processed and whether the peer waits for the broker."""
    flow = FakeSocket(Load().buffer).flow
    flow.pause(reason)
    assert (flow.takes_events, flow.is_kept_waiting) == (takes_events, is_kept_waiting)


@pytest.mark.parametrize(
    ("records", "size_bytes", "gathered", "encoding"),
    [(LINES_MAX, 0, 0, 0), (0, BYTES_MAX, 0, 0), (4, 0, 3, 3), (0, 0, LINES_MAX, 0)],
)
def test_a_full_buffer_pauses_a_socket_until_capacity_is_released(
    records, size_bytes, gathered, encoding
):
    """Lines count while they are gathered, encoded, or queued at the writer."""
    load = Load()
    socket = FakeSocket(load.buffer)
    load.queue.records, load.queue.bytes = records, size_bytes
    load.buffer.gathered_lines, load.encoder.lines = gathered, encoding
    socket.flow.check()
    socket.flow.check()
    assert not socket.is_read
    assert load.stats.blocked == 1
    load.buffer.release()  # still full: it pauses again
    assert not socket.is_read
    load.queue.records = load.queue.bytes = 0
    load.buffer.gathered_lines = 0
    load.buffer.release()
    assert socket.is_read
    assert not socket.flow.reasons


def test_a_nameless_connection_is_read_on_while_its_oldest_lines_may_be_dropped():
    """With drop_oldest, a full buffer pauses only named producers, which are promised a reply."""
    load = Load(drops_oldest=True)
    nameless, named = FakeSocket(load.buffer), FakeSocket(load.buffer)
    named.flow.may_drop = False
    load.queue.records = LINES_MAX
    nameless.flow.check()
    named.flow.check()
    assert (nameless.is_read, named.is_read) == (True, False)


def test_no_connection_is_read_while_too_much_is_being_encoded():
    """Lines being encoded cannot be dropped, so drop_oldest also pauses for them."""
    load = Load(drops_oldest=True)
    socket = FakeSocket(load.buffer)
    load.encoder.bytes = ENCODING_BYTES_MAX
    socket.flow.check()
    assert not socket.is_read


@pytest.mark.parametrize(
    ("drops_oldest", "waiting_records", "dropped"),
    [(True, LINES_MAX, 6), (True, LINES_MAX - 1, 0), (False, LINES_MAX, 0)],
)
def test_the_oldest_lines_are_dropped_only_from_a_full_buffer(
    drops_oldest, waiting_records, dropped
):
    """Dropped lines are counted, and each append of them ends with Overloaded."""
    load = Load(drops_oldest=drops_oldest)
    outcomes = []
    load.waiting = [SimpleNamespace(records=3, done=outcomes.append) for _ in range(3)]
    load.queue.records = waiting_records
    load.buffer.make_capacity(2)
    assert load.stats.dropped == dropped
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * (dropped // 3)


def test_a_closed_connection_is_not_resumed():
    """A closed connection is not resumed and does not wait for capacity again."""
    load = Load()
    socket = FakeSocket(load.buffer)
    load.queue.records = LINES_MAX
    socket.flow.check()
    socket.flow.close()
    load.queue.records = 0
    load.buffer.release()
    socket.flow.check()
    assert socket.processed == 0
    assert load.stats.blocked == 1
