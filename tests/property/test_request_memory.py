"""The budget for requests in memory: never far exceeded, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cordwood.decide.request_memory import PATIENCE_S, RATE_BYTES_MIN, RequestMemory

FRAME_MAX = 100
BUDGET = 250
PEERS = st.integers(0, 9)


class Connections(RuleBasedStateMachine):
    """Peers that announce frames, get room in steps, finish, are answered and go."""

    @initialize()
    def begin(self):
        """Nobody is there yet."""
        self.memory = RequestMemory(BUDGET)
        self.now = 0.0
        self.missing: dict[int, int] = {}  # room a peer's frame still needs
        self.waiting: set[int] = set()
        self.room: dict[int, int] = {}
        self.whole: dict[int, list[int]] = {}
        self.asked: dict[int, int] = {}

    def _got(self, peer, size):
        self.room[peer] = self.room.get(peer, 0) + size

    def _admit(self):
        for peer in self.memory.admitted(self.now):
            self.waiting.remove(peer)
            self._got(peer, self.asked.pop(peer))

    @rule(peer=PEERS, size=st.integers(1, FRAME_MAX), first=st.integers(1, FRAME_MAX))
    def announce(self, peer, size, first):
        """A frame begins, with some of its room."""
        if peer in self.room or peer in self.waiting:
            return
        self.missing[peer] = size - min(first, size)
        if self.memory.take(peer, min(first, size), self.now):
            self._got(peer, min(first, size))
        else:
            self.waiting.add(peer)
            self.asked[peer] = min(first, size)

    @rule(peer=PEERS)
    def grow(self, peer):
        """It needs the rest of its room."""
        if peer in self.room and peer not in self.waiting and self.missing.get(peer):
            size, self.missing[peer] = self.missing[peer], 0
            if self.memory.take(peer, size, self.now):
                self._got(peer, size)
            else:
                self.waiting.add(peer)
                self.asked[peer] = size

    @rule(peer=PEERS)
    def complete(self, peer):
        """Its last byte came."""
        if peer in self.room and peer not in self.waiting and not self.missing[peer]:
            size = self.room.pop(peer)
            self.memory.completed(peer, size)
            self.whole.setdefault(peer, []).append(size)

    @rule(peer=PEERS)
    def answer(self, peer):
        """The oldest request of a peer is answered."""
        if self.whole.get(peer):
            self.memory.give_back(peer, self.whole[peer].pop(0))
            self._admit()

    @rule(peer=PEERS)
    def leave(self, peer):
        """A connection is gone."""
        self.memory.leave(peer)
        self.memory.give_back(peer, sum(self.whole.pop(peer, [])))
        self.room.pop(peer, None)
        self.missing.pop(peer, None)
        self.waiting.discard(peer)
        self.asked.pop(peer, None)
        self._admit()

    @invariant()
    def counts_what_is_held(self):
        """Room of frames that arrive and bytes of requests that wait, and nothing else."""
        held = sum(self.room.values()) + sum(map(sum, self.whole.values()))
        assert self.memory.used_bytes == held
        assert self.memory.waiting.keys() == self.waiting

    @invariant()
    def stays_near_the_budget(self):
        """By the frames that were let past it: one that arrives, and those already whole."""
        arriving = sum(self.room.values())
        assert arriving <= BUDGET + FRAME_MAX

    @precondition(lambda self: self.waiting)
    @rule()
    def all_that_can_finish_does(self):
        """However many wait: if peers send and requests are answered, the line gets empty."""
        for _ in range(40):
            for peer in range(10):
                self.grow(peer)
                self.complete(peer)
                self.answer(peer)
        assert not self.waiting


TestConnections = Connections.TestCase


@given(st.integers(0, 20 * RATE_BYTES_MIN), st.floats(0, 20))
def test_only_who_brings_too_little_while_others_wait_is_slow(arrived_bytes, seconds):
    """Patience first, then a rate; and nobody is slow while there is room for all."""
    memory = RequestMemory(100)
    assert memory.take("holder", 100, 0.0)
    memory.arrived("holder", arrived_bytes)
    assert memory.slow(seconds) == []
    assert memory.take("overdrawn", 100, 0.0)
    assert not memory.take("waits", 100, 0.0)
    memory.arrived("overdrawn", 100 * RATE_BYTES_MIN)
    is_slow = seconds > PATIENCE_S and arrived_bytes < RATE_BYTES_MIN * seconds
    assert memory.slow(seconds) == (["holder"] if is_slow else [])
