"""Limits of the line listeners: connections, idle time, line length and memory."""

from __future__ import annotations

import logging
import resource
import socket

import pytest

from cordwood.lab.scenarios.pressure import StallingFiles
from cordwood.testing import Broker
from support.clock import ManualClock
from support.limits import require_open_files
from support.lines import (
    Served,
    Wire,
    ask,
    high_watermark,
    is_blocked,
    numbered,
    read_topic,
    until,
    wires,
)


async def sweep(broker: Broker) -> None:
    """Close idle ingress connections now."""
    broker.service.server.listeners["ingress"].sweep()


def listeners(broker: Broker) -> dict[str, int]:
    return {
        name: len(listener.connections)
        for name, listener in broker.service.server.listeners.items()
    }


def test_a_thousand_idle_connections_are_served_all_the_same(tmp_path):
    """With a thousand idle connections, others are served and little memory is used.

    Afterwards no connection is left.
    """
    require_open_files(2048)
    with Served(tmp_path / "data") as served:
        served.warm_up()
        before = served.rss_bytes()
        with wires(served.ingress, 500), wires(served.control, 500) as controls:
            with Wire(served.ingress) as wire:
                wire.hello("busy")
                wire.send(numbered(1, 1001)).acked(1000)
            assert controls[-1].ask(b"GET_ACK") == b"ACK 1000"
            assert controls[0].ask(b"GET_ACK") == b"ACK 1000"
            assert served.rss_bytes() - before < 60 * 2**20
        until(
            lambda: (served.connections("ingress"), served.connections("control")) == (0, 1),
            "all are gone but the one that asks",
        )


def test_listener_that_is_full_refuses_and_its_connections_go_on():
    """connections.max applies per listener; closing a connection allows a new one."""
    with Broker(kafka="off", durability="os", connections_max=3) as broker:
        with wires(broker.control, 3) as held:
            for wire in held:
                assert wire.ask(b"GET_ACK none").startswith(b"ERR")
            with Wire(broker.control) as refused:
                assert refused.is_closed()
            with Wire(broker.ingress) as other_listener:
                assert other_listener.hello("a")[0] == b"OK"
            assert held[0].ask(b"REGISTER t") == b"OK"
        until(lambda: listeners(broker)["control"] == 0, "places are given back")
        assert ask(broker.control, "GET_ACK").startswith(b"ACK")
        assert broker.service.server.listeners["control"].refused == 1


def test_idle_connection_is_closed_and_a_listener_is_not():
    """idle.timeout.ms closes silent connections, but not waiting subscribers."""
    clock = ManualClock()
    with Broker(kafka="off", durability="os", clock=clock, idle_timeout_ms=60_000) as broker:
        with Wire(broker.control) as idle, Wire(broker.control) as listener:
            ask(broker.control, "REGISTER append")
            idle.ask(b"GET_ACK")
            listener.send(b"SUBSCRIBE append\n")
            until(lambda: _listens(broker), "the subscription runs")
            clock.advance(61_000)
            assert idle.is_closed()
            ask(broker.control, "PUT append late")
            assert listener.line().endswith(b"|late")
        assert broker.service.server.listeners["control"].timed_out == 1


def _listens(broker: Broker) -> bool:
    return any(
        link.is_subscriber for link in broker.service.server.listeners["control"].connections
    )


@pytest.mark.parametrize("listener", ["ingress", "control", "http"])
def test_slow_loris_is_idle_however_it_drips(listener: str):
    """Bytes that never complete a request do not count as activity (slow loris)."""
    clock = ManualClock()
    with Broker(kafka="off", durability="os", clock=clock, idle_timeout_ms=60_000) as broker:
        with Wire(broker.address(listener)) as loris:
            until(lambda: listeners(broker)[listener] == 1, "it is connected")
            for byte in b"GET_ACK and so on, never a newline":
                loris.send(bytes([byte]))
                clock.advance(3_000)
            until(lambda: listeners(broker)[listener] == 0, "the drip is cut off")
        assert ask(broker.control, "GET_ACK nothing").startswith(b"ERR UNKNOWN_TOPIC")


def test_connections_ask_whether_their_peer_is_still_there(broker: Broker):
    """Connections use TCP keepalive, which detects peers that are gone without a write."""
    with Wire(broker.ingress), Wire(broker.control):
        until(
            lambda: listeners(broker)["ingress"] == listeners(broker)["control"] == 1,
            "both are there",
        )
        for name in ("ingress", "control"):
            (link,) = broker.service.server.listeners[name].connections
            raw = link.transport.get_extra_info("socket")
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_line_of_64_mib_is_skipped_in_constant_memory(tmp_path):
    """A 64 MiB line becomes a truncated dead letter with bounded memory.

    The lines before and after it are stored.
    """
    with Served(tmp_path / "data") as served:
        with Wire(served.ingress) as wire:
            wire.send(b"test.k|17|1|before\n")
            served.warm_up()
            before = served.rss_bytes()
            wire.send(b"test.k|17|2|")
            for _ in range(64):
                wire.send(b"x" * 2**20)
            grown = served.rss_bytes() - before
            assert wire.send(b"\ntest.k|17|3|after\n").end().rest() == b""
        assert grown < 30 * 2**20
        payloads = [line.payload for line in read_topic(served.control)]
        assert payloads == [b"before", b"after"]
        (letter,) = read_topic(served.control, "dead_letter")
        assert letter.payload == b"test.k|17|2|" + b"x" * (4096 - 12)


def test_bytes_of_any_kind_in_a_payload_are_a_record(broker: Broker):
    """Lines with NUL and invalid UTF-8 are stored unchanged."""
    payload = bytes(byte for byte in range(256) if byte not in b"\r\n")
    with Wire(broker.ingress) as wire:
        wire.hello("raw")
        wire.send(b"test.k|17|1|" + payload + b"\n" + b"t\xff\xfe|17|2|\0\n").acked(2)
    first, second = read_topic(broker.control)
    assert first.payload == payload
    assert (second.routing_key, second.payload) == ("t\udcff\udcfe", b"\0")


def test_full_buffer_blocks_a_named_producer_whatever_the_policy():
    """drop_oldest does not apply to named producers: a full buffer blocks them."""
    files = StallingFiles()
    settings = {"kafka": "off", "files": files, "ingress_overflow": "drop_oldest"}
    with Broker(**settings, ingress_buffer=100) as broker, Wire(broker.ingress) as wire:
        wire.hello("careful")
        with files.stalled():
            assert is_blocked(wire, numbered(1, 2000, "x" * 500), 400)
            service = broker.service.broker.ingress
            assert service.stats.dropped == 0
            assert broker.service.broker.writer.waiting_bytes < 32 * 2**20
        assert wire.line().startswith(b"ACK ")


def test_large_lines_fill_the_buffer_by_their_bytes():
    """A few large lines also fill the buffer, although ingress.buffer counts records."""
    files = StallingFiles()
    with Broker(kafka="off", files=files) as broker, Wire(broker.ingress) as wire:
        ask(broker.control, "REGISTER append")
        with files.stalled():
            assert is_blocked(wire, b"test.k|17|1|" + b"x" * 1_000_000 + b"\n", 200)
            assert broker.service.broker.writer.waiting_bytes < 40 * 2**20


def test_line_that_comes_before_its_session_is_open_waits_in_the_socket():
    """Before its session is open, a connection reads only a bounded number of bytes."""
    files = StallingFiles()
    with Broker(kafka="off", files=files) as broker:
        with files.stalled(), Wire(broker.ingress) as wire:
            assert is_blocked(wire, b"test.k|17|1|" + b"x" * 1_000_000 + b"\n", 200)
        until(lambda: not listeners(broker)["ingress"], "it is gone")


def test_sender_held_by_a_full_buffer_is_not_idle():
    """A sender blocked by a full buffer is not closed as idle."""
    files, clock = StallingFiles(), ManualClock()
    settings = {"kafka": "off", "files": files, "clock": clock, "ingress_buffer": 10}
    with Broker(**settings, idle_timeout_ms=1000) as broker:
        with Wire(broker.ingress) as first, Wire(broker.ingress) as second:
            second.hello("second")
            with files.stalled():
                first.send(numbered(1, 101))
                second.send(numbered(1, 101))
                service = broker.service.broker.ingress
                until(
                    lambda: service.stats.records == 200 and service.stats.blocked, "they are held"
                )
                clock.advance(10_000)
                broker.run(lambda: sweep(broker))
                assert listeners(broker)["ingress"] == 2
            second.acked(100)
        assert high_watermark(broker.control) == 200


def test_memory_stays_bounded_under_a_flood_of_bad_lines(tmp_path):
    """Eight concurrent floods of bad lines use bounded memory, and each line is a dead letter."""
    with Served(tmp_path / "data", durability="os") as served:
        served.warm_up()
        before = served.rss_bytes()
        with wires(served.ingress, 8) as floods:
            for _ in range(2):
                for wire in floods:
                    wire.send(b"x\n" * 8_000)
            grown = served.rss_bytes() - before
            for wire in floods:
                wire.end()
            assert all(wire.rest() == b"" for wire in floods)
        assert grown < 250 * 2**20
        until(
            lambda: high_watermark(served.control, "dead_letter") == 128_000,
            "every bad line is a dead letter",
        )


def test_a_crowd_beyond_the_open_files_is_refused_in_one_line_and_the_log_goes_on(tmp_path):
    """Connections beyond the open-file limit are refused with one log line.

    The log keeps its descriptors, and new connections are accepted once the others close.
    """
    with Served(tmp_path / "data") as served:
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (96, 96))
        with Wire(served.control) as early:
            assert early.ask(b"REGISTER before") == b"OK"
            with wires(served.control, 120) as crowd:
                assert crowd[-1].is_closed()
                for number in range(5):
                    assert early.ask(b"PUT topic-%d payload" % number).startswith(b"OK")
                output = served.log().count("connection.refused listener=control")
                assert (output, "raise `ulimit -n`" in served.log()) == (1, True)
            until(lambda: served.connections("control", early) == 1, "the crowd is gone")
        with Wire(served.control) as late:
            assert late.ask(b"GET_ACK topic-0") == b"ACK 1"


def test_refusals_are_logged_without_a_traceback(broker: Broker, caplog):
    """A refused connection is logged without a traceback."""
    caplog.set_level(logging.INFO)
    with Wire(broker.ingress) as wire:
        wire.send(b"HELLO bad/name\n").rest()
    assert any("connection.refused listener=ingress" in r.getMessage() for r in caplog.records)
