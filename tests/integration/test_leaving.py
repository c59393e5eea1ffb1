"""The broker releases the connection of a waiting client as soon as the client disconnects.

These topics receive no records, so the broker cannot notice by writing to a closed socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from pathlib import Path

import pytest

from cordwood.broker import subscription as subscription_module
from cordwood.protocol.kafka.frames import encode_request
from cordwood.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.kafka.messages.groups import JoinGroupProtocol, JoinGroupRequest
from cordwood.protocol.kafka.messages.metadata import ApiVersionsRequest
from cordwood.server.certs import write_lab_certificates
from cordwood.testing import Broker
from support.coordination import subscription
from support.lines import Served, Wire, ask, until

VISITS = 300


@pytest.fixture
def broker():
    """A broker that allows fewer connections than VISITS, so a leaked one causes refusals."""
    with Broker(durability="os", connections_max=40) as running:
        assert ask(running.control, "REGISTER quiet") == b"OK"
        yield running


def connections(broker: Broker, listener: str) -> int:
    return len(broker.service.server.listeners[listener].connections)


def gone(broker: Broker, listener: str) -> None:
    until(lambda: connections(broker, listener) == 0, f"nobody is left at {listener}")


def waits(broker: Broker) -> int:
    """Count the futures that wait for records."""
    return sum(len(waiting) for waiting in broker.service.broker.notifier._waits.values())


def test_subscribers_of_a_quiet_topic_that_close_are_let_go(broker):
    """A closed subscription releases its connection although no record is ever sent."""
    for _ in range(VISITS):
        with Wire(broker.control) as wire:
            wire.send(b"SUBSCRIBE quiet\nGET_ACK quiet\n")
            assert wire.line() == b"ACK 0"
    gone(broker, "control")
    assert waits(broker) == 0
    assert broker.service.server.listeners["control"].refused == 0


def test_subscribers_of_a_quiet_topic_that_reset_are_let_go(broker):
    """A TCP reset, as from a killed process, releases the connection."""
    for _ in range(VISITS):
        wire = Wire(broker.control)
        assert wire.send(b"SUBSCRIBE quiet\nGET_ACK quiet\n").line() == b"ACK 0"
        wire.reset()
    gone(broker, "control")
    assert waits(broker) == 0


def test_a_half_closed_subscriber_of_a_quiet_topic_gets_the_end(broker):
    """After a half-close, as by ``nc -N``, the broker sends nothing and closes the connection."""
    for command in (b"SUBSCRIBE quiet\n", b"SUBSCRIBE quiet FROM_START AS reader\n"):
        with Wire(broker.control) as wire:
            assert wire.send(command).end().rest() == b""
    gone(broker, "control")


def test_tls_subscribers_that_close_are_let_go(tmp_path):
    """A TLS connection is released with and without a close_notify."""
    write_lab_certificates(tmp_path, ["localhost", "127.0.0.1"], 1, replace=False)
    settings = {"tls_cert": str(tmp_path / "server.pem"), "tls_key": str(tmp_path / "server.key")}
    with Broker(durability="os", control_tls="127.0.0.1:0", **settings) as broker:
        assert ask(broker.control, "REGISTER quiet") == b"OK"
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        for is_rude in (False, True) * 5:
            wire = Wire(broker.address("control_tls"), tls=context)
            assert wire.send(b"SUBSCRIBE quiet\nGET_ACK quiet\n").line() == b"ACK 0"
            wire.reset() if is_rude else wire.close()
        gone(broker, "control")
        assert waits(broker) == 0


def test_descriptors_do_not_grow_with_visits(tmp_path):
    """The broker process's open file descriptors do not increase with the number of visits."""
    with Served(tmp_path / "data", durability="os", connections_max=50) as served:
        assert ask(served.control, "REGISTER quiet") == b"OK"
        before = descriptors(served.process.pid)
        for _ in range(VISITS):
            with Wire(served.control) as wire:
                wire.send(b"SUBSCRIBE quiet\n")
        with Wire(served.control) as wire:
            until(lambda: served.connections("control", wire) == 1, "only the asking one is left")
            # Kernels may still be loading, which opens files for a moment.
            until(lambda: descriptors(served.process.pid) <= before + 1, "the visits' are closed")
            refused = json.loads(wire.ask(b"METRICS"))["cordwood_connections_refused_total"]
            assert all(row["value"] == 0 for row in refused if row["listener"] == "control")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# --- Kafka ----------------------------------------------------------------------------------


def long_poll() -> bytes:
    """Encode a Fetch that waits one minute for a record."""
    part = FetchPartition(0, -1, 0, -1, -1, 1_000_000)
    request = FetchRequest(
        -1, 60_000, 1, 1_000_000, 0, 0, -1, [FetchTopic("quiet", partitions=[part])]
    )
    return b"".join(encode_request(request, 11, 1, "leaving"))


def join(group: str) -> bytes:
    """Encode a JoinGroup that waits for a member that never rejoins."""
    request = JoinGroupRequest(
        group,
        30_000,
        2**31 - 1,
        "",
        None,
        "consumer",
        [JoinGroupProtocol("p", subscription("quiet"))],
    )
    return b"".join(encode_request(request, 3, 1, "leaving"))


def versions(count: int) -> bytes:
    return b"".join(encode_request(ApiVersionsRequest(), 0, 2, "leaving")) * count


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.kafka.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.parametrize("behind", [0, 300], ids=["alone", "with requests behind it"])
@pytest.mark.parametrize("is_rude", [False, True], ids=["closed", "reset"])
def test_a_consumer_that_leaves_amid_a_long_poll_is_let_go(broker, behind, is_rude):
    """The connection is released even if pipelined requests make the broker stop reading."""
    for _ in range(10):
        with connect(broker) as listener:
            listener.sendall(long_poll() + versions(behind))
            until(lambda: waits(broker) > 0, "it waits")
            if is_rude:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone(broker, "kafka")
    until(lambda: waits(broker) == 0, "no wait is left")


@pytest.mark.parametrize("behind", [0, 300], ids=["alone", "with requests behind it"])
def test_a_member_that_leaves_while_its_group_rebalances_is_let_go(broker, behind):
    """The broker releases the member's connection without waiting for the rebalance to end."""
    first = connect(broker)
    first.sendall(join("g"))
    assert first.recv(4)
    for _ in range(5):
        with connect(broker) as listener:
            listener.sendall(join("g") + versions(behind))
            until(lambda: connections(broker, "kafka") == 2, "it has come")
        until(lambda: connections(broker, "kafka") == 1, "it is let go")
    first.close()
    gone(broker, "kafka")


def test_a_subscription_that_fails_ends_its_connection(broker, monkeypatch, caplog):
    """An internal error in a subscription is logged and closes the connection."""

    def fail(*_):
        raise ValueError("ours")

    assert ask(broker.control, "PUT quiet one") == b"OK"
    monkeypatch.setattr(subscription_module, "_read_lines", fail)
    wire = Wire(broker.control).send(b"SUBSCRIBE quiet FROM_START\n")
    with contextlib.suppress(ConnectionResetError):
        assert wire.rest() == b""
    wire.close()
    gone(broker, "control")
    assert "control.failed" in caplog.text


# --- HTTP and ingress -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "output", [b"", b"GET /heal", b"POST /api/cut HTTP/1.1\r\nhost: localhost\r\n"]
)
def test_an_http_client_that_leaves_mid_request_is_let_go(broker, output):
    """An incomplete HTTP request releases its connection after a close or a reset."""
    for is_rude in (False, True) * 30:
        wire = Wire(broker.http).send(output)
        wire.reset() if is_rude else wire.close()
    gone(broker, "http")


@pytest.mark.parametrize("output", [b"", b"HELLO me\n", b"HELLO me\nk|1|1|ha", b"k|1|1|half"])
def test_an_ingress_client_that_leaves_is_let_go(broker, output):
    """An ingress client may disconnect between lines, within a line or after HELLO."""
    for is_rude in (False, True) * 20:
        wire = Wire(broker.ingress).send(output)
        wire.reset() if is_rude else wire.close()
    gone(broker, "ingress")
