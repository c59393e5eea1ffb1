"""Readers of the control listener: cursors, subscriptions and slow subscribers."""

from __future__ import annotations

import threading

import pytest

from cordwood.broker.subscription import FRESH_RECORDS
from cordwood.client import Client
from cordwood.testing import Broker
from support.lines import Served, Wire, ask, numbered, until


def fill(broker: Broker, start: int, end: int) -> None:
    with Wire(broker.ingress) as wire:
        wire.hello("filler")
        wire.send(numbered(start, end)).acked(end - 1)


def test_readers_take_each_record_for_themselves(broker: Broker):
    """Two named readers and the unnamed reader each get every record."""
    for n in range(5):
        assert ask(broker.control, f"PUT jobs {n}") == b"OK"
    for command in ("GET jobs AS a", "GET jobs AS b", "GET jobs"):
        with Wire(broker.control) as wire:
            taken = [wire.ask(command.encode()) for _ in range(6)]
        assert taken == [b"OK 0", b"OK 1", b"OK 2", b"OK 3", b"OK 4", b"EMPTY"]


def test_gets_of_one_reader_share_the_records_out(broker: Broker):
    """With four connections of one reader, GET returns every record to exactly one of them."""
    for n in range(60):
        ask(broker.control, f"PUT jobs {n}")
    taken: list[bytes] = []

    def take() -> None:
        with Wire(broker.control) as wire:
            while (reply := wire.ask(b"GET jobs AS team")) != b"EMPTY":
                taken.append(reply)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(b"OK %d" % n for n in range(60))


def test_cursor_survives_a_restart(tmp_path):
    """A reader's acknowledged position is durable and continues after a restart."""
    with Broker(tmp_path / "data", kafka="off") as broker:
        fill(broker, 1, 11)
        assert ask(broker.control, "REGISTER append AS audit") == b"OK"
        assert ask(broker.control, "ACK append audit 4") == b"OK"
        broker.restart()
        with Wire(broker.control) as wire:
            assert wire.send(b"SUBSCRIBE append AS audit\n").line().startswith(b"5|")


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (b"SUBSCRIBE append FROM_START", 1),
        (b"SUBSCRIBE append FROM 7", 7),
        (b"SUBSCRIBE append FROM 11", 11),
        (b"SUBSCRIBE append FROM_START AS late", 1),
        (b"SUBSCRIBE append FROM 3 AS late", 3),
        (b"SUBSCRIBE append AS new", 1),
        (b"SUBSCRIBE append", 11),
    ],
)
def test_stream_begins_where_it_was_asked_and_follows(broker: Broker, command: bytes, first: int):
    """A subscription starts at the log start, a seq, a cursor or the end.

    It then streams new records.
    """
    fill(broker, 1, 11)
    with Wire(broker.control) as wire:
        wire.send(command + b"\nGET_ACK\n")
        reply = wire.line()
        before = [] if reply.startswith(b"ACK") else [reply]
        while reply != b"ACK 10" and len(before) < 11 - first + 1:
            reply = wire.line()
            before.append(reply)
        before = [line for line in before if not line.startswith(b"ACK")]
        fill(broker, 11, 16)
        lines = before + wire.lines(16 - first - len(before))
    assert [int(line.partition(b"|")[0]) for line in lines] == list(range(first, 16))


def test_stream_in_frames_keeps_payloads_raw(broker: Broker):
    """A framed subscriber gets one frame per record with the unescaped payload."""
    with Wire(broker.control) as wire:
        wire.frame(b"PUT raw a\nb").read_frame()
        body = wire.frame(b"SUBSCRIBE raw FROM_START").read_frame()
    assert body.startswith(b"1|")
    assert body.endswith(b"||a\nb")


def test_subscriber_that_half_closes_gets_what_there_is_and_then_the_end(broker: Broker):
    """A subscriber that closes its sending side gets the current records and then the end.

    So ``echo SUBSCRIBE … | nc -N`` prints the topic and exits. The broker does not wait for new
    records, because it cannot know whether a half-closed peer still exists.
    """
    fill(broker, 1, 4)
    with Wire(broker.control) as wire:
        wire.send(b"SUBSCRIBE append FROM_START\n").end()
        output = wire.rest().splitlines()
    assert [line.partition(b"|")[0] for line in output] == [b"1", b"2", b"3"]


def test_subscriber_that_ends_its_side_later_ends_where_the_log_does(broker: Broker):
    """A waiting subscriber gets new records; when it half-closes, the stream ends."""
    fill(broker, 1, 2)
    with Wire(broker.control) as wire:
        assert wire.send(b"SUBSCRIBE append FROM_START\n").line().startswith(b"1|")
        fill(broker, 2, 3)
        assert wire.line().startswith(b"2|")
        assert wire.end().rest() == b""


def test_a_waiting_subscriber_gets_few_and_many_records_in_order_and_once(broker: Broker):
    """A waiting subscriber gets small and large bursts in order, each record once.

    Small bursts are read on the event loop, large ones on another thread.
    """
    bursts = (1, FRESH_RECORDS, FRESH_RECORDS + 1, 3, 2000, 1)
    fill(broker, 1, 2)
    with Wire(broker.control) as wire:
        assert wire.send(b"SUBSCRIBE append FROM_START\n").line().startswith(b"1|")
        seen = 1
        for count in bursts:
            fill(broker, seen + 1, seen + 1 + count)
            lines = wire.lines(count)
            numbers = [int(line.partition(b"|")[0]) for line in lines]
            assert numbers == list(range(seen + 1, seen + 1 + count))
            seen += count


def test_second_subscription_on_a_connection_is_refused(broker: Broker):
    """A second SUBSCRIBE on a connection fails and suggests another connection."""
    fill(broker, 1, 2)
    with Wire(broker.control) as wire:
        assert wire.send(b"SUBSCRIBE append FROM_START\n").line().startswith(b"1|")
        assert b"open another" in wire.ask(b"SUBSCRIBE append")
        assert wire.ask(b"GET_ACK") == b"ACK 1"


def test_subscriber_who_does_not_read_costs_neither_memory_nor_speed(tmp_path):
    """Forty subscribers that do not read a 60 MB topic use less than 60 MiB of memory.

    A producer and another subscriber are served meanwhile.
    """
    payload = "x" * 1000
    with Served(tmp_path / "data", durability="os") as served:
        with Wire(served.ingress) as wire:
            wire.hello("bulk")
            for start in range(1, 60_001, 200):  # batches smaller than a slice
                wire.send(numbered(start, start + 200, payload)).acked(start + 199)
        served.warm_up()
        before = served.rss_bytes()
        idle = [Wire(served.control, receive_bytes=4096) for _ in range(40)]
        for wire in idle:
            wire.send(b"SUBSCRIBE append FROM_START\n")
            assert wire.line().startswith(b"1|")
        with Wire(served.ingress) as wire:
            wire.hello("other")
            wire.send(numbered(1, 20_001, payload)).acked(20_000)
        with Client(served.control) as client, client.subscribe("append", from_start=True) as lines:
            assert sum(1 for _, line in zip(range(80_000), lines, strict=False)) == 80_000
        assert served.rss_bytes() - before < 60 * 2**20
        for wire in idle:
            wire.close()
        until(
            lambda: served.connections("control") == 1,
            "the forty are gone",
        )
        assert "Traceback" not in served.log()
