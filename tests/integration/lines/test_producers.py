"""The ingress listener: acknowledgements, duplicates, takeovers, dead letters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from cordwood.batch.lines import REASONS
from cordwood.batch.records import decode_committed
from cordwood.errors import PartitionOffline
from cordwood.lab.scenarios.pressure import StallingFiles
from cordwood.log.files.disk import OpenFile
from cordwood.model import Record
from cordwood.testing import Broker
from support.lines import Wire, ask, high_watermark, numbered, read_topic, until


def stored(broker: Broker, topic: str) -> list[Record]:
    """All records of a topic with their headers, read directly from the log."""
    partition = broker.service.broker.store.topic(topic).partition(0)
    offset, records = 0, []
    while offset < partition.high_watermark:
        read = partition.read(offset, 2**20)
        records += decode_committed(read.data)
        offset = read.next_offset
    return records


def letters(broker: Broker, count: int) -> list[tuple[bytes | None, str, str]]:
    """Wait for ``count`` dead letters and return the bytes, reason and source of each."""
    until(lambda: high_watermark(broker.control, "dead_letter") >= count, f"{count} dead letters")
    found = []
    for record in stored(broker, "dead_letter"):
        headers = {header.key: (header.value or b"").decode() for header in record.headers}
        found.append((record.value, headers["dlq.reason"], headers["dlq.source"]))
    assert len(found) == count
    return found


def source(wire: Wire) -> str:
    return "{}:{}".format(*wire.socket.getsockname())


def test_named_producer_hears_of_every_line(broker: Broker):
    """HELLO returns the epoch and the last n; ACK gives the n up to which lines are durable."""
    with Wire(broker.ingress) as wire:
        assert wire.hello("billing") == [b"OK", b"billing", b"0", b"0"]
        wire.send(numbered(1, 1001)).acked(1000)
    lines = read_topic(broker.control)
    assert [line.n for line in lines] == list(range(1, 1001))
    assert lines[41].payload == b"p42"


def test_resent_lines_are_dropped_also_after_a_restart(tmp_path):
    """Resent lines are dropped, also after a restart: the log keeps each producer's last n."""
    with Broker(tmp_path / "data", kafka="off") as broker:
        with Wire(broker.ingress) as wire:
            wire.hello("billing")
            wire.send(numbered(1, 101)).acked(100)
            wire.send(numbered(51, 121)).acked(120)
            wire.send(numbered(1, 121)).acked(120)
        broker.restart()
        with Wire(broker.ingress) as wire:
            assert wire.hello("billing")[3] == b"120"
            wire.send(numbered(90, 151)).acked(150)
        assert [line.n for line in read_topic(broker.control)] == list(range(1, 151))


def test_frames_at_the_ingress_listener_are_acknowledged_in_frames(broker: Broker):
    """A framed line is acknowledged in a frame; its payload may contain newlines and NUL."""
    payload = b"a\nb\0c|d\r\n"
    with Wire(broker.ingress) as wire:
        assert wire.frame(b"HELLO framed").read_frame() == b"OK framed 0 0"
        assert wire.frame(b"test.k|17|1|" + payload).read_frame() == b"ACK 1"
    assert [r.value for r in stored(broker, "append")] == [payload]


def test_second_connection_takes_the_name_over(broker: Broker):
    """A second HELLO with the same name fences and closes the first connection.

    No line of either connection is lost or stored twice.
    """
    with Wire(broker.ingress) as first, Wire(broker.ingress) as second:
        first.hello("billing")
        first.send(numbered(1, 11)).acked(10)
        assert second.hello("billing")[3] == b"10"
        assert first.line().startswith(
            b"ERR PRODUCER_FENCED another connection has sent HELLO billing"
        )
        assert first.is_closed()
        second.send(numbered(5, 21)).acked(20)
    assert [line.n for line in read_topic(broker.control)] == list(range(1, 21))


def test_many_connections_of_one_name_at_once_leave_one(broker: Broker):
    """When connections race for one name, each n is stored once and the name is released."""
    replies: list[list[bytes]] = []

    def produce() -> None:
        with Wire(broker.ingress) as wire:
            replies.append(wire.hello("racer"))
            with contextlib.suppress(OSError):  # another connection took the name
                wire.send(numbered(1, 201)).end().rest()

    threads = [threading.Thread(target=produce) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Wire(broker.ingress) as wire:
        wire.hello("racer")
        wire.send(numbered(1, 201)).acked(200)
    assert sorted(line.n for line in read_topic(broker.control)) == list(range(1, 201))
    until(lambda: not broker.service.broker.ingress.names.holders, "names are given back")


def test_older_epoch_is_refused(broker: Broker):
    """HELLO with a lower epoch than the last one fails with PRODUCER_FENCED."""
    with Wire(broker.ingress) as wire:
        assert wire.hello("billing", 5)[2] == b"5"
    with Wire(broker.ingress) as wire:
        assert wire.hello("billing", 4)[:2] == [b"ERR", b"PRODUCER_FENCED"]
        assert wire.is_closed()


@pytest.mark.parametrize(
    ("greeting", "code"),
    [
        (b"HELLO\n", b"BAD_HELLO"),
        (b"HELLO a b c\n", b"BAD_HELLO"),
        (b"HELLO bad/name\n", b"BAD_HELLO"),
        (b"HELLO a 70000\n", b"BAD_HELLO"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\n", None),
        (b"\x01\x00\x00\x00x\xff\xff\xff\xff", b"BAD_FRAME"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"UNEXPECTED_TLS"),
    ],
)
def test_an_unsupported_greeting_gets_an_error_and_is_closed(
    broker: Broker, greeting: bytes, code: bytes | None
):
    """An invalid greeting gets one ERR line and the connection closes.

    A first line that is only an invalid record becomes a dead letter.
    """
    with Wire(broker.ingress) as wire:
        output = wire.send(greeting).end().rest()
    if code is None:
        assert output == b""
        assert letters(broker, 1)[0][0] == greeting[:-1]
    else:
        assert b"ERR " + code in output


def test_what_is_no_record_becomes_a_dead_letter_with_why_and_whence(broker: Broker):
    """An invalid line becomes a dead letter with its bytes, the reason and the source address.

    Valid lines on the same connection are stored.
    """
    long = b"test.k|17|1|" + b"x" * 2_000_000
    with Wire(broker.ingress) as wire:
        peer = source(wire)
        wire.send(b"test.k|17|1|good\n")
        wire.send(b"no separators\n" + b"|17|2|no key\n" + b"test.k|when|3|x\n")
        wire.send(b"test.k|17|many|x\n" + b"te\x07st|17|4|x\n" + b"\0\0\0\0\0|17|4|x\n")
        wire.send(long + b"\n" + b"test.k|17|5|good\n" + b"test.k|17|6|cut sho")
        assert wire.end().rest() == b""
    assert [line.payload for line in read_topic(broker.control)] == [b"good", b"good"]
    found = letters(broker, 8)
    assert [value for value, _, _ in found] == [
        b"no separators",
        b"|17|2|no key",
        b"test.k|when|3|x",
        b"test.k|17|many|x",
        b"te\x07st|17|4|x",
        b"\0\0\0\0\0|17|4|x",
        long[:4096],
        b"test.k|17|6|cut sho",
    ]
    assert {where for _, _, where in found} == {peer}
    reasons = [why for _, why, _ in found]
    assert reasons[0].startswith("expected routing_key|timestamp|n|payload")
    assert reasons[1] == "the routing key is empty"
    assert "timestamp" in reasons[2]
    assert reasons[3].startswith("n is not")
    assert "control character" in reasons[4]
    assert reasons[6:] == [f"too_long {len(long)} bytes", "half_line"]


def test_client_that_vanishes_mid_line_leaves_a_dead_letter(broker: Broker):
    """After a connection reset, complete lines are stored and the partial one is a dead letter."""
    wire = Wire(broker.ingress)
    wire.send(numbered(1, 4) + b"test.k|17|4|cut sho")
    until(lambda: high_watermark(broker.control) == 3, "the whole lines are stored")
    wire.reset()
    assert letters(broker, 1)[0][:2] == (b"test.k|17|4|cut sho", "half_line")


def test_flood_of_bad_lines_is_all_there_and_nobody_waits_long(broker: Broker):
    """A flood of 131,072 bad lines is stored completely as dead letters and counted."""
    with Wire(broker.ingress) as wire:
        wire.send(b"x\n" * 131_072 + b"test.k|17|1|good\n")
        assert wire.end().rest() == b""
    assert high_watermark(broker.control, "dead_letter") == 131_072
    assert [line.payload for line in read_topic(broker.control)] == [b"good"]
    assert broker.service.broker.ingress.stats.rejected == 131_072


def test_lines_without_hello_get_no_reply(broker: Broker):
    """Lines without HELLO get no reply; when the broker closes, all of them are stored."""
    with Wire(broker.ingress) as wire:
        assert wire.send(numbered(1, 5001)).end().rest() == b""
    assert high_watermark(broker.control) == 5000


def test_order_holds_per_producer_while_many_send(broker: Broker):
    """Eight concurrent producers each have their lines stored once and in order."""

    def produce(number: int) -> None:
        with Wire(broker.ingress) as wire:
            wire.hello(f"p{number}")
            wire.send(numbered(1, 2001, key=f"k.{number}")).acked(2000)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read_topic(broker.control)
    assert [line.seq for line in lines] == list(range(1, 16_001))
    for number in range(8):
        own = [line.n for line in lines if line.routing_key == f"k.{number}"]
        assert own == list(range(1, 2001))


def test_names_are_free_again_after_their_connections():
    """Names are released after their lines are durable, even if the producers left earlier."""
    files = StallingFiles()
    with Broker(kafka="off", files=files) as broker:
        service = broker.service.broker.ingress
        wires = [Wire(broker.ingress) for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.hello(f"brief-{number}")
        with files.stalled():
            for wire in wires:
                wire.send(numbered(1, 2))
            until(
                lambda: sum(stream.pending for stream in service.names.holders.values()) == 20,
                "the lines are under way",
            )
            for wire in wires:
                wire.reset()
            listener = broker.service.server.listeners["ingress"]
            until(lambda: not listener.connections, "their connections are gone")
            assert len(service.names.holders) == 20
        until(lambda: not service.names.holders, "names are given back")
        assert ask(broker.control, "GET_ACK") == b"ACK 20"


class WatchedFiles(StallingFiles):
    """A disk that counts the fsync calls in progress."""

    syncs = 0

    def sync_data(self, file: OpenFile) -> None:
        self.syncs += 1
        super().sync_data(file)
        self.syncs -= 1


@contextlib.contextmanager
def gathered(
    broker: Broker, files: WatchedFiles, wires: list[Wire], blocks: list[bytes]
) -> Iterator[None]:
    """Make the blocks wait together behind another producer's fsync until the context ends."""
    service = broker.service.broker.ingress
    with Wire(broker.ingress) as first:
        last_n = int(first.hello("first")[-1])
        with files.stalled():
            first.send(numbered(last_n + 1, last_n + 2, key="first"))
            until(lambda: files.syncs, "its line is being synced")  # so the writer is busy
            for wire, block in zip(wires, blocks, strict=True):
                wire.send(block)
            lines = sum(block.count(b"\n") for block in blocks)
            until(lambda: service.buffer.gathered_lines == lines, "the others' lines wait")
            yield


def test_concurrent_senders_are_each_acknowledged_for_their_own_lines():
    """Producers whose lines share one append each get the acknowledgement for their own lines."""
    files = WatchedFiles()
    with Broker(kafka="off", files=files) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.ingress)) for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.hello(f"p{number}")
        for turn in range(3):
            starts = [100 * number + 10 * turn + 1 for number in range(20)]
            spans = [(start, start + 1 + start // 100 % 4) for start in starts]
            keys = [f"k.{number}" for number in range(20)]
            blocks = [numbered(*span, key=key) for span, key in zip(spans, keys, strict=True)]
            with gathered(broker, files, wires, blocks):
                pass
            for wire, (_, end) in zip(wires, spans, strict=True):
                wire.acked(end - 1)
        found = [(line.routing_key, line.n) for line in read_topic(broker.control)]
    for number in range(20):
        sent = [100 * number + 10 * turn + 1 for turn in range(3)]
        expected = [n for start in sent for n in range(start, start + 1 + number % 4)]
        assert [n for key, n in found if key == f"k.{number}"] == expected


@pytest.mark.parametrize("names", [5, 6], ids=["one nameless", "all named"])
def test_bad_repeated_and_nameless_lines_among_many_harm_nobody(names: int):
    """Bad, repeated and unnamed lines do not affect other blocks encoded in the same call."""
    files = WatchedFiles()
    with Broker(kafka="off", files=files) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.ingress)) for _ in range(6)]
        for number, wire in enumerate(wires):
            if number < names:
                wire.hello(f"p{number}")
            wire.send(numbered(1, 3, key=f"k.{number}"))
            until(lambda count=2 * number + 2: high_watermark(broker.control) == count, "stored")
        blocks = [numbered(3, 5, key=f"k.{number}") for number in range(6)]
        blocks[1] = b"this is no record\n" + blocks[1]
        blocks[2] = numbered(1, 3, key="k.2")  # both lines were sent before
        blocks[3] = numbered(2, 4, key="k.3")  # one of these was sent before
        with gathered(broker, files, wires, blocks):
            pass
        for wire, n in zip(wires[:names], (4, 4, 2, 3, 4, 4), strict=False):
            wire.acked(2)
            if n > 2:
                wire.acked(n)
        assert letters(broker, 1) == [(b"this is no record", REASONS[1], source(wires[1]))]
        until(lambda: high_watermark(broker.control) == 12 + 1 + 9, "all are stored")
        found = [(line.routing_key, line.n) for line in read_topic(broker.control)]
    full = [1, 2, 3, 4]
    kept = {"k.0": full, "k.1": full, "k.2": [1, 2], "k.3": [1, 2, 3], "k.4": full, "k.5": full}
    assert {key: [n for who, n in found if who == key] for key in kept} == kept


def test_when_what_many_sent_cannot_be_stored_each_of_them_hears_it():
    """When a shared append fails, every producer in it gets ERR PARTITION_OFFLINE."""

    class Broken(WatchedFiles):
        is_broken = False

        def write_at(self, file: OpenFile, data: bytearray | memoryview, position: int) -> None:
            if self.is_broken:
                raise PartitionOffline("the disk is gone")
            super().write_at(file, data, position)

    files = Broken()
    with Broker(kafka="off", files=files) as broker, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.ingress)) for _ in range(4)]
        for number, wire in enumerate(wires):
            wire.hello(f"p{number}")
            wire.send(numbered(1, 2)).acked(1)
        blocks = [numbered(2, 3)] * 4
        with gathered(broker, files, wires, blocks):
            files.is_broken = True
        for wire in wires:
            assert wire.rest().startswith(b"ERR PARTITION_OFFLINE ")
        files.is_broken = False
