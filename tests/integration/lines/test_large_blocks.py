"""Large blocks of lines are encoded beside the event loop: order, bounds and ends stay the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.batch.lines import LineBatch, encode_lines, load_kernels
from cordwood.broker.ingest import service
from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.testing import Broker
from support.lines import Wire, high_watermark, is_blocked, numbered, read_topic, until

MIB = 2**20


class Bench:
    """The encoding of large blocks, which waits here until it is let go; every block is large."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.error: Exception | None = None
        monkeypatch.setattr(service, "ASIDE_BYTES", 1)
        monkeypatch.setattr(service, "encode_lines", self._encode)

    def _encode(self, *arguments: Any, **options: Any) -> LineBatch:
        self.goes_on.wait()
        if self.error:
            raise self.error
        return encode_lines(*arguments, **options)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    load_kernels()
    made = Bench(monkeypatch)
    yield made
    made.goes_on.set()


def encoding_tasks(broker: Broker) -> int:
    return len(broker.service.broker.ingress._aside._futures)


def test_what_follows_a_large_block_comes_after_it(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """However small it is; and what it repeats is known, though nothing is stored yet."""
    with Broker(kafka="off", durability="os") as broker, Wire(broker.ingress) as wire:
        wire.hello("steady")
        wire.send(numbered(1, 101))
        until(lambda: encoding_tasks(broker), "it is beside the loop")
        monkeypatch.setattr(service, "ASIDE_BYTES", MIB)
        aside = broker.service.broker.ingress._aside
        expected = aside.lines
        for block in [(101, 111), (50, 106), (60, 112)]:  # most of them more than once
            wire.send(numbered(*block))
            expected += block[1] - block[0]
            until(lambda count=expected: aside.lines == count, "it is behind it")
        bench.goes_on.set()
        wire.acked(111)
        assert [line.n for line in read_topic(broker.control)] == list(range(1, 112))


def test_dead_letters_of_a_large_block_come_before_those_that_followed(bench: Bench):
    """A bad line in it, then a line too long, then a half one: in the order they came."""
    with Broker(kafka="off", durability="os", line_bytes_max=100) as broker:
        with Wire(broker.ingress) as wire:
            wire.send(b"test.k|17|1|good\nthe first bad one\n")
            until(lambda: encoding_tasks(broker), "it is beside the loop")
            wire.send(b"x" * 200 + b"\n").send(b"test.k|17|2|good\nhalf a li").end()
            bench.goes_on.set()
            assert wire.rest() == b""
        letters = broker.service.broker.store.topic("dead_letter").partition(0)
        until(lambda: letters.high_watermark == 3, "all three are there")
        data = bytes(letters.read(0, MIB).data)
        places = [data.find(text) for text in (b"the first bad", b"x" * 100, b"half a li")]
        assert -1 not in places
        assert places == sorted(places)
        assert [line.payload for line in read_topic(broker.control)] == [b"good"] * 2


@pytest.mark.parametrize("overflow", ["block", "drop_oldest"])
def test_a_socket_is_not_read_far_beyond_what_can_be_encoded(bench: Bench, overflow: str):
    """Not even of those whose lines may be dropped: what is read is kept until it is encoded."""
    settings = {"durability": "os", "ingress_overflow": overflow, "ingress_buffer": 10**9}
    with Broker(kafka="off", **settings) as broker, Wire(broker.ingress) as wire:
        ingress = broker.service.broker.ingress
        line = b"test.k|17|1|" + b"x" * 987 + b"\n"
        assert is_blocked(wire, line * 1000, 60)
        assert ingress._aside.bytes < service.ASIDE_BYTES_MAX + 2 * MIB
        bench.goes_on.set()
        wire.socket.setblocking(True)
        wire.send(b"\n" * 2000).end()  # a line of it may have been cut
        assert wire.rest() == b""
        assert ingress._aside.bytes == ingress._aside.lines == 0
        assert high_watermark(broker.control) >= 3000


def test_a_block_that_cannot_be_encoded_ends_its_connection_and_no_other(bench: Bench):
    """It is our fault then; the sender hears the end and sends again, and nothing was taken."""
    with Broker(kafka="off", durability="os") as broker, Wire(broker.ingress) as wire:
        with Wire(broker.ingress) as other:
            wire.hello("unlucky")
            other.hello("other")
            bench.error = MemoryError("no room for it")
            wire.send(numbered(1, 101))
            until(lambda: encoding_tasks(broker), "it is beside the loop")
            bench.goes_on.set()
            assert wire.rest() == b""
            bench.error = None
            other.send(numbered(1, 101)).acked(100)
        with Wire(broker.ingress) as again:
            assert again.hello("unlucky")[-1] == b"0"
            again.send(numbered(1, 101)).acked(100)
        assert high_watermark(broker.control) == 200


def test_a_stop_waits_for_what_is_being_encoded(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Lines taken from a socket that has closed have no other copy."""
    stop = OrderedExecutor.stop

    async def let_go_and_stop(aside: OrderedExecutor) -> None:
        bench.goes_on.set()
        await stop(aside)

    monkeypatch.setattr(OrderedExecutor, "stop", let_go_and_stop)
    with Broker(tmp_path / "data", kafka="off", shutdown_timeout_ms=1) as broker:
        with Wire(broker.ingress) as wire:
            wire.send(numbered(1, 101))
            until(lambda: encoding_tasks(broker), "it is beside the loop")
            broker.restart()
        assert high_watermark(broker.control) == 100
