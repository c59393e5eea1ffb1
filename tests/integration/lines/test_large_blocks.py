"""Large blocks of lines are encoded on a thread: order, memory bounds and stops still hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cordwood.batch.lines import LineBatch, encode_lines, load_kernels
from cordwood.broker.ingest.flow_control import ENCODING_BYTES_MAX
from cordwood.broker.ingest.ordered_executor import OrderedExecutor
from cordwood.testing import Broker
from support.lines import Wire, high_watermark, is_blocked, numbered, read_topic, until

MIB = 2**20


class Encoding:
    """Treats every block as large and holds its encoding until ``goes_on`` is set."""

    def __init__(self, broker: Broker) -> None:
        self.goes_on = threading.Event()
        self.error: Exception | None = None
        self.ingress = broker.service.broker.ingress
        self.ingress.thread_bytes = 1
        self.ingress.encode = self._encode

    def _encode(self, *arguments: Any, **options: Any) -> LineBatch:
        self.goes_on.wait()
        if self.error:
            raise self.error
        return encode_lines(*arguments, **options)

    def is_running(self) -> bool:
        return self.ingress.encoder.bytes > 0


@contextmanager
def encoding_in(broker: Broker) -> Iterator[Encoding]:
    load_kernels()
    encoding = Encoding(broker)
    try:
        yield encoding
    finally:
        encoding.goes_on.set()


def test_what_follows_a_large_block_comes_after_it():
    """Small blocks behind a large one are stored after it, and repeated lines are dropped."""
    with (
        Broker(kafka="off", durability="os") as broker,
        encoding_in(broker) as encoding,
        Wire(broker.ingress) as wire,
    ):
        wire.hello("steady")
        wire.send(numbered(1, 101))
        until(encoding.is_running, "it is beside the loop")
        encoding.ingress.thread_bytes = MIB
        encoder = encoding.ingress.encoder
        expected = encoder.lines
        for block in [(101, 111), (50, 106), (60, 112)]:  # most lines repeat
            wire.send(numbered(*block))
            expected += block[1] - block[0]
            until(lambda count=expected: encoder.lines == count, "it is behind it")
        encoding.goes_on.set()
        wire.acked(111)
        assert [line.n for line in read_topic(broker.control)] == list(range(1, 112))


def test_dead_letters_of_a_large_block_come_before_those_that_followed():
    """Dead letters of a large block and of the lines behind it keep their arrival order."""
    with (
        Broker(kafka="off", durability="os", line_bytes_max=100) as broker,
        encoding_in(broker) as encoding,
    ):
        with Wire(broker.ingress) as wire:
            wire.send(b"test.k|17|1|good\nthe first bad one\n")
            until(encoding.is_running, "it is beside the loop")
            wire.send(b"x" * 200 + b"\n").send(b"test.k|17|2|good\nhalf a li").end()
            encoding.goes_on.set()
            assert wire.rest() == b""
        letters = broker.service.broker.store.topic("dead_letter").partition(0)
        until(lambda: letters.high_watermark == 3, "all three are there")
        data = bytes(letters.read(0, MIB).data)
        places = [data.find(text) for text in (b"the first bad", b"x" * 100, b"half a li")]
        assert -1 not in places
        assert places == sorted(places)
        assert [line.payload for line in read_topic(broker.control)] == [b"good"] * 2


@pytest.mark.parametrize("overflow", ["block", "drop_oldest"])
def test_a_socket_is_not_read_far_beyond_what_can_be_encoded(overflow: str):
    """The broker stops reading when too many bytes wait for encoding, under either policy."""
    settings = {"durability": "os", "ingress_overflow": overflow, "ingress_buffer": 10**9}
    with (
        Broker(kafka="off", **settings) as broker,
        encoding_in(broker) as encoding,
        Wire(broker.ingress) as wire,
    ):
        ingress = encoding.ingress
        line = b"test.k|17|1|" + b"x" * 987 + b"\n"
        assert is_blocked(wire, line * 1000, 60)
        assert ingress.encoder.bytes < ENCODING_BYTES_MAX + 2 * MIB
        encoding.goes_on.set()
        wire.socket.setblocking(True)
        wire.send(b"\n" * 2000).end()  # ends a line that may have been cut
        assert wire.rest() == b""
        assert ingress.encoder.bytes == ingress.encoder.lines == 0
        assert high_watermark(broker.control) >= 3000


def test_a_block_that_cannot_be_encoded_ends_its_connection_and_no_other():
    """An encoding failure closes its connection only and stores nothing.

    The producer can reconnect and send its lines again.
    """
    with Broker(kafka="off", durability="os") as broker, encoding_in(broker) as encoding:
        with Wire(broker.ingress) as wire, Wire(broker.ingress) as other:
            wire.hello("unlucky")
            other.hello("other")
            encoding.error = MemoryError("not enough memory for it")
            wire.send(numbered(1, 101))
            until(encoding.is_running, "it is beside the loop")
            encoding.goes_on.set()
            assert wire.rest() == b""
            encoding.error = None
            other.send(numbered(1, 101)).acked(100)
        with Wire(broker.ingress) as again:
            assert again.hello("unlucky")[-1] == b"0"
            again.send(numbered(1, 101)).acked(100)
        assert high_watermark(broker.control) == 200


def test_a_stop_waits_for_what_is_being_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stop waits for blocks that are being encoded, because the broker has the only copy."""
    stop = OrderedExecutor.stop
    with (
        Broker(tmp_path / "data", kafka="off", shutdown_timeout_ms=1) as broker,
        encoding_in(broker) as encoding,
    ):

        async def let_go_and_stop(encoder: OrderedExecutor) -> None:
            encoding.goes_on.set()
            await stop(encoder)

        monkeypatch.setattr(OrderedExecutor, "stop", let_go_and_stop)
        with Wire(broker.ingress) as wire:
            wire.send(numbered(1, 101))
            until(encoding.is_running, "it is beside the loop")
            broker.restart()
        assert high_watermark(broker.control) == 100
