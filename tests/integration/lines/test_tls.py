"""TLS on the line and HTTP listeners: which clients are accepted and which are refused."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.server.certs import write_lab_certificates
from cordwood.testing import Broker
from support.lines import Wire, http_get, numbered, parse, read_topic, until

LISTENERS = ("ingress", "control", "http")
ASK = {
    "ingress": (b"HELLO tls\n", b"OK tls 0 0"),
    "control": (b"GET_ACK nowhere\n", b"ERR UNKNOWN_TOPIC"),
    "http": (b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200"),
}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the broker's CA (``ours``) and of a second CA (``foreign``)."""
    directory = tmp_path_factory.mktemp("certs")
    for name in ("ours", "foreign"):
        write_lab_certificates(directory / name, ["localhost", "127.0.0.1"], 1, replace=False)
    return directory


def tls_broker(certs: Path, **settings: object) -> Broker:
    listeners = {f"{listener}_tls": "127.0.0.1:0" for listener in LISTENERS}
    return Broker(
        kafka="off",
        durability="os",
        tls_cert=str(certs / "ours/server.pem"),
        tls_key=str(certs / "ours/server.key"),
        **listeners,
        **settings,
    )


@pytest.fixture
def mutual(certs: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    """A TLS broker that requires client certificates; its log must contain no traceback."""
    caplog.set_level(logging.INFO)
    with tls_broker(certs, tls_client_ca=str(certs / "ours/ca.pem")) as running:
        yield running
    assert [
        record
        for record in caplog.records
        if record.name.startswith("cordwood") and record.exc_info
    ] == []


def client(certs: Path, who: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certs / "ours/ca.pem"))
    if who:
        context.load_cert_chain(certs / who / "client.pem", certs / who / "client.key")
    return context


@pytest.mark.parametrize("listener", LISTENERS)
def test_client_with_a_certificate_of_our_ca_is_served(mutual: Broker, certs: Path, listener: str):
    """With mutual TLS every listener serves a client with a certificate of the broker's CA."""
    output, reply = ASK[listener]
    with Wire(mutual.address(f"{listener}_tls"), tls=client(certs, "ours")) as wire:
        assert wire.send(output).line().startswith(reply)


@pytest.mark.parametrize("who", [None, "foreign"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_client_without_our_certificate_is_refused(
    mutual: Broker, certs: Path, listener: str, who: str | None
):
    """A client without a certificate, or with one of another CA, fails the handshake.

    No byte reaches the listener.
    """
    output = b""
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        Wire(mutual.address(f"{listener}_tls"), tls=client(certs, who)) as wire,
    ):
        # In TLS 1.3 the server refuses after the client has completed its side of the handshake.
        output = wire.send(ASK[listener][0]).line()
    assert output == b""
    assert mutual.service.server.listeners[listener].accepted == 0


@pytest.mark.parametrize("listener", LISTENERS)
def test_server_that_is_not_ours_is_noticed(mutual: Broker, certs: Path, listener: str):
    """A client that trusts only another CA rejects the broker's certificate."""
    context = ssl.create_default_context(cafile=str(certs / "foreign/ca.pem"))
    with pytest.raises(ssl.SSLCertVerificationError):
        Wire(mutual.address(f"{listener}_tls"), tls=context)


@pytest.mark.parametrize("listener", LISTENERS)
def test_tls_to_a_plain_port_gets_an_error_that_says_so(mutual: Broker, certs: Path, listener: str):
    """A TLS handshake on a plaintext port ends the connection instead of hanging.

    The line listeners also reply ERR UNEXPECTED_TLS.
    """
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Wire(mutual.address(listener), tls=client(certs, "ours"))
    with Wire(mutual.address(listener)) as wire:
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
        output = wire.send(hello).end().rest()
    assert b"ERR UNEXPECTED_TLS" in output or listener == "http"
    until(
        lambda: not mutual.service.server.listeners[listener].connections, "the place is free again"
    )


@pytest.mark.parametrize("listener", LISTENERS)
def test_plain_text_to_a_tls_port_is_closed(mutual: Broker, listener: str):
    """Plaintext on a TLS port is closed at once and not counted as an accepted connection."""
    with Wire(mutual.address(f"{listener}_tls")) as wire:
        wire.send(ASK[listener][0] + b"padding so that a record is complete\n" * 10)
        while not wire.is_closed():
            pass
    assert mutual.service.server.listeners[listener].accepted == 0


def test_handshake_that_never_comes_is_timed_out(certs: Path):
    """A peer that sends no handshake is disconnected after handshake.timeout.ms."""
    with tls_broker(certs, handshake_timeout_ms=200) as broker:
        for listener in LISTENERS:
            with socket.create_connection(parse(broker.address(f"{listener}_tls")), 30) as silent:
                silent.settimeout(30)
                with contextlib.suppress(ConnectionResetError):  # a reset is fine too
                    assert silent.recv(1) == b""


def test_lines_sent_just_before_the_end_are_stored(certs: Path):
    """All lines of a TLS client that sends and closes at once, as socat does, are stored."""
    with tls_broker(certs) as broker:
        with Wire(broker.address("ingress_tls"), tls=client(certs, None)) as wire:
            wire.send(numbered(1, 20_001))
            wire.socket.unwrap()
        until(lambda: _stored(broker) == 20_000, "all lines are stored")
        assert [line.n for line in read_topic(broker.control)] == list(range(1, 20_001))


def _stored(broker: Broker) -> int:
    return broker.service.broker.store.topic("append").partition(0).high_watermark


def test_stop_says_farewell_over_tls(certs: Path):
    """A stopping broker sends close_notify, so the client sees an end, not a truncation."""
    broker = tls_broker(certs)
    broker.start()
    with Wire(broker.address("control_tls"), tls=client(certs, None)) as wire:
        wire.ask(b"GET_ACK nowhere")
        broker.stop()
        assert wire.rest() == b""


def test_plain_and_tls_listeners_share_a_listener(mutual: Broker, certs: Path):
    """Plaintext and TLS connections count towards one listener and write to one log."""
    with (
        Wire(mutual.address("ingress_tls"), tls=client(certs, "ours")) as secret,
        Wire(mutual.ingress) as plain,
    ):
        secret.hello("a")
        secret.send(numbered(1, 4)).acked(3)
        plain.hello("b")
        plain.send(numbered(1, 4)).acked(3)
        assert len(mutual.service.server.listeners["ingress"].connections) == 2
    assert len(read_topic(mutual.control)) == 6
    assert http_get(mutual.http, "/healthz")[0] == 200
