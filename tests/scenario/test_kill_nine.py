"""Kill the broker with SIGKILL under load: acknowledged records survive once and in order."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from support.lines import Served, Wire, numbered, read_topic, until

ROUNDS = 50
PRODUCERS = 4
CHUNK = 50


class Load(threading.Thread):
    """A named producer for one run of the broker; it resends unacknowledged records."""

    def __init__(self, ingress: str, name: str, acked: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._ingress = ingress
        self._name = name
        self._acked = acked
        self.known: int | None = None  # the last number that the broker reports

    def run(self) -> None:
        try:
            with Wire(self._ingress) as wire:
                self.known = int(wire.hello(self._name)[3])
                self._push(wire)
        except (OSError, ValueError, IndexError):
            pass  # the broker was killed in the middle of a reply

    def _push(self, wire: Wire) -> None:
        n = self._acked[self._name] + 1
        while True:
            wire.send(numbered(n, n + CHUNK, f"{self._name}-", key=f"k.{self._name}"))
            n += CHUNK
            while self._acked[self._name] < n - 4 * CHUNK:  # a few chunks are always in flight
                reply = wire.line()
                if not reply.startswith(b"ACK "):
                    return
                self._acked[self._name] = int(reply[4:])


@pytest.mark.slow
@pytest.mark.timeout(900)  # 95 s of CPU time, on a machine that may be busy
def test_acknowledged_records_survive_fifty_kills_once_and_in_order(tmp_path: Path):
    """Four producers use HELLO, and the broker is killed at random times."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    acked = {f"p{number}": 0 for number in range(PRODUCERS)}
    for _ in range(ROUNDS):
        before = dict(acked)
        with Served(tmp_path / "data", log_level="warning") as served:
            loads = [Load(served.ingress, name, acked) for name in acked]
            for load in loads:
                load.start()
            wanted = sum(acked.values()) + chance.randrange(1, 4000)
            until(lambda goal=wanted: sum(acked.values()) >= goal, "enough was acknowledged")
            served.kill()
            for load in loads:
                load.join(30)
        for load, name in zip(loads, acked, strict=True):
            assert load.known is None or load.known >= before[name], "the broker forgot"
    with Served(tmp_path / "data") as served:
        lines = read_topic(served.control)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    for name, last in acked.items():
        own = [line for line in lines if line.routing_key == f"k.{name}"]
        assert [line.n for line in own] == list(range(1, len(own) + 1)), f"seed={seed}"
        assert len(own) >= last
        assert all(line.payload == f"{name}-{line.n}".encode() for line in own)
    assert "Traceback" not in (tmp_path / "data.log").read_text()
