"""Our clients with TLS: line protocol (blocking and async), HTTP and Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.client import Client, ClientTls, Producer, aio
from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.errors import TlsError, WrongListener
from cordwood.protocol.api.status import GetBrokerStatus
from cordwood.testing import Broker
from support.tls import client_tls, make_certificates, tls_broker


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the broker's CA and, in ``foreign``, of another."""
    directory = make_certificates(tmp_path_factory.mktemp("certs"))
    make_certificates(directory / "foreign")
    return directory


@pytest.fixture(scope="module")
def mutual(certs: Path) -> Iterator[Broker]:
    """A broker with TLS only that requires client certificates; it has one record."""
    with tls_broker(certs) as running:
        assert ask_blocking("Producer", running.address("ingress_tls"), client_tls(certs)) == 1
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[Broker]:
    """A broker without TLS."""
    with Broker() as running:
        yield running


def ask_blocking(kind: str, address: str, tls: Any) -> int:
    """Send one record or one request; return the number of records or the last seq."""
    if kind == "Producer":
        with Producer(address, tls=tls) as producer:
            return producer.send_and_confirm([("a.b", b"1")])
    with Client(address, tls=tls) as client:
        return client.get_ack()


def ask_async(kind: str, address: str, tls: Any) -> int:
    """The same with the async classes."""

    async def ask() -> int:
        if kind == "Producer":
            async with aio.Producer(address, tls=tls) as producer:
                return await producer.send_and_confirm([("a.b", b"1")])
        async with aio.Client(address, tls=tls) as client:
            return await client.get_ack()

    return asyncio.run(ask())


def ask_http(kind: str, address: str, tls: Any) -> int:
    """One request to the HTTP API."""
    del kind
    return len(HttpClient(address, tls=tls).call(GetBrokerStatus()).version)


def ask_kafka(kind: str, address: str, tls: Any) -> int:
    """One request to the Kafka listener."""
    del kind
    with KafkaClient(address, tls=tls) as client:
        return 1 + len(client.topics())


CLIENTS = [  # how to ask, which class, which listener
    pytest.param(ask_blocking, "Producer", "ingress", id="producer"),
    pytest.param(ask_blocking, "Client", "control", id="client"),
    pytest.param(ask_async, "Producer", "ingress", id="async-producer"),
    pytest.param(ask_async, "Client", "control", id="async-client"),
    pytest.param(ask_http, "", "http", id="http"),
    pytest.param(ask_kafka, "", "kafka", id="kafka"),
]
every_client = pytest.mark.parametrize(("ask", "kind", "listener"), CLIENTS)


def url(listener: str, address: str, *, is_tls: bool) -> str:
    return f"https://{address}" if is_tls and listener == "http" else address


@every_client
@pytest.mark.parametrize("form", ["paths", "text", "context"])
def test_client_with_a_certificate_is_served(
    mutual: Broker, certs: Path, ask: Any, kind: str, listener: str, form: str
):
    """Paths, PEM text and a context of the caller's own do the same."""
    tls: ClientTls | object = client_tls(certs)
    if form != "paths":
        tls = client_tls(certs).inlined() if form == "text" else client_tls(certs).context()
    address = url(listener, mutual.address(f"{listener}_tls"), is_tls=True)
    assert ask(kind, address, tls) >= 1


@every_client
def test_client_without_tls_is_told_that_the_listener_uses_it(
    mutual: Broker, ask: Any, kind: str, listener: str
):
    """The error comes at once, not when the time for a reply is over."""
    with pytest.raises(TlsError, match="is a TLS listener, but this client connects without"):
        ask(kind, mutual.address(f"{listener}_tls"), None)


@every_client
def test_client_with_tls_is_told_that_the_listener_has_none(
    plain: Broker, certs: Path, ask: Any, kind: str, listener: str
):
    """The reverse, whatever the listener replies to a handshake."""
    address = url(listener, plain.address(listener), is_tls=True)
    with pytest.raises(TlsError, match="is a listener without TLS, but this client"):
        ask(kind, address, client_tls(certs))


@every_client
def test_authority_host_and_client_certificate_are_told_apart(
    mutual: Broker, certs: Path, ask: Any, kind: str, listener: str
):
    """A wrong CA, a wrong host name and a certificate that is missing or foreign: one sentence."""
    address = mutual.address(f"{listener}_tls")
    here = url(listener, address, is_tls=True)
    with pytest.raises(TlsError, match=r"is not trusted \(self-signed"):
        ask(kind, here, client_tls(certs / "foreign"))
    for tls in (client_tls(certs, shows=False), client_tls(certs, of=certs / "foreign")):
        with pytest.raises(TlsError, match="it requires a client certificate"):
            ask(kind, here, tls)
    elsewhere = url(listener, f"localhost:{address.rpartition(':')[2]}", is_tls=True)
    with pytest.raises(TlsError, match="does not name localhost"):
        ask(kind, elsewhere, client_tls(certs))


@every_client
def test_port_of_another_listener_is_told(
    mutual: Broker, plain: Broker, certs: Path, ask: Any, kind: str, listener: str
):
    """A client on the port of another protocol gets its name, with TLS and without."""
    other, name = ("http", "HTTP") if listener != "http" else ("kafka", "Kafka")
    with pytest.raises(WrongListener, match=f"is the {name} listener"):
        ask(kind, plain.address(other), None)
    address = url(listener, mutual.address(f"{other}_tls"), is_tls=True)
    with pytest.raises(WrongListener, match=f"is the {name} listener"):
        ask(kind, address, client_tls(certs))


@every_client
def test_host_name_need_not_match_where_that_is_wanted(
    mutual: Broker, certs: Path, ask: Any, kind: str, listener: str
):
    """``verify_host=False`` accepts any name, but still only certificates of the CA."""
    ours = client_tls(certs)
    tls = ClientTls(ours.ca, ours.cert, ours.key, verify_host=False)
    port = mutual.address(f"{listener}_tls").rpartition(":")[2]
    address = url(listener, f"localhost:{port}", is_tls=True)
    assert ask(kind, address, tls) >= 1
    foreign = ClientTls(str(certs / "foreign/ca.pem"), ours.cert, ours.key, verify_host=False)
    with pytest.raises(TlsError, match="is not trusted"):
        ask(kind, address, foreign)


def test_subscription_uses_the_tls_of_its_client(mutual: Broker, certs: Path):
    """Its own connection is made like that of the client."""
    tls = client_tls(certs)
    with Producer(mutual.address("ingress_tls"), tls=tls) as producer:
        producer.send_and_confirm([("sub.x", b"payload")])
    with (
        Client(mutual.address("control_tls"), tls=tls) as client,
        client.subscribe("append", from_start=True, idle_timeout_s=30) as lines,
    ):
        assert next(line for line in lines if line.routing_key == "sub.x").payload == b"payload"
