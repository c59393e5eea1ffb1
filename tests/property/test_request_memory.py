"""Request memory stays close to its budget, and every waiting request is admitted in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cordwood.decide.request_memory import PATIENCE_S, RATE_BYTES_MIN, RequestMemory

FRAME_MAX = 100
BUDGET = 250
PEERS = st.integers(0, 9)


class Connections(RuleBasedStateMachine):
    """Peers announce frames, take memory in steps, complete frames, get answers and disconnect."""

    @initialize()
    def begin(self):
        """Start with no peers."""
        self.memory = RequestMemory(BUDGET)
        self.now = 0.0
        self.missing: dict[int, int] = {}  # bytes that a peer's frame still needs
        self.waiting: set[int] = set()
        self.reserved: dict[int, int] = {}
        self.whole: dict[int, list[int]] = {}
        self.asked: dict[int, int] = {}

    def _got(self, peer, size):
        self.reserved[peer] = self.reserved.get(peer, 0) + size

    def _admit(self):
        for peer in self.memory.admitted(self.now):
            self.waiting.remove(peer)
            self._got(peer, self.asked.pop(peer))

    @rule(peer=PEERS, size=st.integers(1, FRAME_MAX), first=st.integers(1, FRAME_MAX))
    def announce(self, peer, size, first):
        """A peer announces a frame and takes the first part of its memory."""
        if peer in self.reserved or peer in self.waiting:
            return
        self.missing[peer] = size - min(first, size)
        if self.memory.take(peer, min(first, size), self.now):
            self._got(peer, min(first, size))
        else:
            self.waiting.add(peer)
            self.asked[peer] = min(first, size)

    @rule(peer=PEERS)
    def grow(self, peer):
        """The peer takes the rest of the memory that its frame needs."""
        if peer in self.reserved and peer not in self.waiting and self.missing.get(peer):
            size, self.missing[peer] = self.missing[peer], 0
            if self.memory.take(peer, size, self.now):
                self._got(peer, size)
            else:
                self.waiting.add(peer)
                self.asked[peer] = size

    @rule(peer=PEERS)
    def complete(self, peer):
        """The last byte of the peer's frame arrives."""
        if peer in self.reserved and peer not in self.waiting and not self.missing[peer]:
            size = self.reserved.pop(peer)
            self.memory.completed(peer, size)
            self.whole.setdefault(peer, []).append(size)

    @rule(peer=PEERS)
    def answer(self, peer):
        """The broker answers the peer's oldest request."""
        if self.whole.get(peer):
            self.memory.give_back(peer, self.whole[peer].pop(0))
            self._admit()

    @rule(peer=PEERS)
    def leave(self, peer):
        """The peer disconnects."""
        self.memory.leave(peer)
        self.memory.give_back(peer, sum(self.whole.pop(peer, [])))
        self.reserved.pop(peer, None)
        self.missing.pop(peer, None)
        self.waiting.discard(peer)
        self.asked.pop(peer, None)
        self._admit()

    @invariant()
    def counts_what_is_held(self):
        """The memory in use belongs to arriving frames and unanswered requests only."""
        held = sum(self.reserved.values()) + sum(map(sum, self.whole.values()))
        assert self.memory.used_bytes == held
        assert self.memory.waiting.keys() == self.waiting

    @invariant()
    def stays_near_the_budget(self):
        """Arriving frames exceed the budget by at most one frame."""
        arriving = sum(self.reserved.values())
        assert arriving <= BUDGET + FRAME_MAX

    @precondition(lambda self: self.waiting)
    @rule()
    def all_that_can_finish_does(self):
        """If peers keep sending and requests are answered, no peer is left waiting."""
        for _ in range(40):
            for peer in range(10):
                self.grow(peer)
                self.complete(peer)
                self.answer(peer)
        assert not self.waiting


TestConnections = Connections.TestCase


@given(st.integers(0, 20 * RATE_BYTES_MIN), st.floats(0, 20))
def test_only_who_brings_too_little_while_others_wait_is_slow(arrived_bytes, seconds):
    """A peer below the minimum rate is slow after a grace period, if another peer waits."""
    memory = RequestMemory(100)
    assert memory.take("holder", 100, 0.0)
    memory.arrived("holder", arrived_bytes)
    assert memory.slow(seconds) == []
    assert memory.take("overdrawn", 100, 0.0)
    assert not memory.take("waits", 100, 0.0)
    memory.arrived("overdrawn", 100 * RATE_BYTES_MIN)
    is_slow = seconds > PATIENCE_S and arrived_bytes < RATE_BYTES_MIN * seconds
    assert memory.slow(seconds) == (["holder"] if is_slow else [])
