"""The writer's state machine: the table lists every legal move, and all others fail."""

from __future__ import annotations

from itertools import product

import pytest

from cordwood.log.write.writer_state import FOR_THREAD, MOVES, WriterState, WriterStateMachine

IDLE, QUEUED, LOADED, HELD, INLINE, UNSYNCED, COMMITTING, FAILED, CLOSED = WriterState

LEGAL = {
    (IDLE, INLINE),
    (IDLE, QUEUED),
    (IDLE, COMMITTING),
    (QUEUED, COMMITTING),
    (LOADED, COMMITTING),
    (HELD, COMMITTING),
    (INLINE, IDLE),
    (INLINE, HELD),
    (INLINE, UNSYNCED),
    (INLINE, FAILED),
    (UNSYNCED, COMMITTING),
    (COMMITTING, IDLE),
    (COMMITTING, QUEUED),
    (COMMITTING, LOADED),
    (COMMITTING, HELD),
    (COMMITTING, CLOSED),
}


def machine_in(state: WriterState) -> WriterStateMachine:
    machine = WriterStateMachine()
    machine.state = state
    return machine


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL, key=str))
def test_a_legal_move_is_made(before: WriterState, after: WriterState):
    """Each legal move changes the state."""
    machine = machine_in(before)
    machine.move(after)
    assert machine.state is after


@pytest.mark.parametrize(
    ("before", "after"), sorted(set(product(WriterState, WriterState)) - LEGAL, key=str)
)
def test_any_other_move_is_a_mistake_of_ours(before: WriterState, after: WriterState):
    """A move that is not in the table raises AssertionError and leaves the state unchanged."""
    machine = machine_in(before)
    with pytest.raises(AssertionError, match="cannot go from"):
        machine.move(after)
    assert machine.state is before


def test_a_writer_begins_idle_and_can_reach_every_state():
    """Every state can be reached from IDLE."""
    reached, left = {WriterStateMachine().state}, [IDLE]
    while left:
        fresh = MOVES[left.pop()] - reached
        reached |= fresh
        left += fresh
    assert reached == set(WriterState)


def test_only_the_thread_leaves_a_state_that_waits_for_it():
    """Work that waits for the writer thread is never written inline."""
    for state in FOR_THREAD:
        assert INLINE not in MOVES[state]


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL, key=str))
def test_a_writer_is_busy_from_the_first_byte_to_the_sync(before: WriterState, after: WriterState):
    """The writer is busy from the first written byte until the sync is done."""
    machine = machine_in(before)
    machine.move(after)
    assert machine.is_busy == (after in {INLINE, UNSYNCED, COMMITTING})
