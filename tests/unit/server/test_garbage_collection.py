"""Full garbage collections run when the broker is idle."""

from __future__ import annotations

import pytest

from cordwood.server.garbage_collection import DUE, GROWN_BYTES, IDLE_SHARE, LOOK_S, FullCollections

BUSY_S = LOOK_S * IDLE_SHARE * 2


class Process:
    """A fake process whose CPU time, memory and pending objects the test sets."""

    def __init__(self):
        self.cpu_s, self.pending, self.resident_bytes, self.collections = 0.0, 0, 0, 0
        self.schedule = FullCollections(
            cpu_s=lambda: self.cpu_s,
            pending=lambda: self.pending,
            resident_bytes=lambda: self.resident_bytes,
            collect=self.collect,
        )

    def collect(self):
        self.collections += 1
        self.pending = 0

    def look(self, cpu_s=0.0):
        self.cpu_s += cpu_s
        self.schedule.look()
        return self.collections


@pytest.fixture
def process():
    return Process()


def test_a_busy_broker_is_not_stopped_for_a_full_collection(process):
    """A busy broker runs no full collection, however many are due."""
    process.pending = DUE * 100
    assert process.look(BUSY_S) == 0
    assert process.look(BUSY_S) == 0


def test_an_idle_broker_collects_once_for_what_is_due(process):
    """An idle broker runs one full collection, and no second one until more is due."""
    process.pending = DUE + 1
    assert process.look() == 1
    assert process.look() == 1


def test_nothing_is_collected_before_it_is_due(process):
    """An idle broker runs no full collection before one is due."""
    process.pending = DUE
    assert process.look() == 0


def test_growing_memory_is_collected_even_while_the_broker_is_busy(process):
    """If memory has grown past the limit, a full collection runs even on a busy broker."""
    process.resident_bytes = GROWN_BYTES + 1
    assert process.look(BUSY_S) == 1
    assert process.look(BUSY_S) == 1
    process.resident_bytes += GROWN_BYTES + 1
    assert process.look(BUSY_S) == 2
