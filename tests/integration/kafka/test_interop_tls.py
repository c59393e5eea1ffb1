"""TLS on the Kafka listener: which clients are accepted or refused, without harm to others."""

from __future__ import annotations

import socket
import ssl
import time

import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient

from cordwood.server.certs import write_lab_certificates
from cordwood.testing import Broker
from support.kafka_clients import PATIENCE_S, Confluent, Sent, kcat

TEXTS = [Sent(b"value %d" % number, b"key") for number in range(10)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Two certificate directories whose CAs do not trust each other."""
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    for directory in (ours, theirs):
        write_lab_certificates(directory, ["127.0.0.1", "localhost"], 1, replace=False)
    return ours, theirs


def serve(directory, **settings):
    return Broker(
        durability="os",
        kafka_tls="127.0.0.1:0",
        tls_cert=str(directory / "server.pem"),
        tls_key=str(directory / "server.key"),
        **settings,
    )


@pytest.fixture(scope="module")
def broker(certificates):
    """A TLS broker that asks for no client certificate."""
    with serve(certificates[0]) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(certificates):
    """A TLS broker that requires a client certificate of its CA."""
    with serve(certificates[0], tls_client_ca=str(certificates[0] / "ca.pem")) as running:
        yield running


def trusting(directory, **more):
    """Settings of librdkafka for a client that trusts the CA in this directory."""
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(directory / "ca.pem"),
        "enable.ssl.certificate.verification": True,
        **more,
    }


def known(directory):
    """Settings of librdkafka with which a client presents its certificate."""
    return {
        "ssl.certificate.location": str(directory / "client.pem"),
        "ssl.key.location": str(directory / "client.key"),
    }


def can_list(address, settings):
    """Whether a librdkafka client can list topics."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, **settings})
    try:
        admin.list_topics(timeout=2)
    except Exception:  # noqa: BLE001 - any error means that the handshake failed
        return False
    return True


def test_records_travel_under_tls(broker, certificates):
    """Records are produced and consumed over TLS, including a frame of many TLS records."""
    address = broker.address("kafka_tls")
    records = [*TEXTS, Sent(bytes(1_000_000))]
    Confluent().send(address, "tls", records, **trusting(certificates[0]))
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        security_protocol="SSL",
        ssl_cafile=str(certificates[0] / "ca.pem"),
        max_partition_fetch_bytes=2**21,
    )
    tp = kafka.TopicPartition("tls", 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(records) and time.monotonic() < deadline:
        found += [record.value for record in consumer.poll(500).get(tp, [])]
    consumer.close()
    assert found == [record.value for record in records]


@pytest.mark.needs("kcat")
def test_kcat_speaks_tls(broker, certificates):
    """Metadata over TLS advertises the TLS address, not the plaintext one."""
    address = broker.address("kafka_tls")
    settings = trusting(certificates[0]).items()
    options = [word for name, value in settings for word in ("-X", f"{name}={value}".lower())]
    printed = kcat("-L", "-b", address, *options).decode()
    assert f"at {address}" in printed


def test_a_client_turns_away_from_a_certificate_it_does_not_trust(broker, certificates):
    """A client that does not trust the broker's certificate cannot connect."""
    address = broker.address("kafka_tls")
    assert not can_list(address, trusting(certificates[1]))
    assert can_list(address, trusting(certificates[0]))


def test_mutual_tls_takes_the_clients_of_its_ca(mutual, certificates):
    """With mutual TLS a client with a certificate of the broker's CA is served."""
    address = mutual.address("kafka_tls")
    settings = trusting(certificates[0], **known(certificates[0]))
    Confluent().send(address, "tls", TEXTS, **settings)
    assert can_list(address, settings)


def test_mutual_tls_refuses_strangers(mutual, certificates):
    """Mutual TLS refuses clients with no certificate or a foreign one, and serves others."""
    address = mutual.address("kafka_tls")
    assert not can_list(address, trusting(certificates[0]))
    assert not can_list(address, trusting(certificates[0], **known(certificates[1])))
    assert can_list(address, trusting(certificates[0], **known(certificates[0])))


def test_plain_bytes_on_the_tls_listener_end_that_connection_alone(broker, certificates):
    """A plaintext client on the TLS listener is disconnected without waiting for a timeout."""
    address = broker.address("kafka_tls")
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
        plain.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x00\xff\xff")
        while plain.recv(1024):
            pass  # a TLS alert, then end of file
    assert can_list(address, trusting(certificates[0]))


def test_tls_bytes_on_the_plain_listener_end_that_connection_alone(broker):
    """A TLS ClientHello on the plaintext listener is an invalid frame length and is closed."""
    host, _, port = broker.kafka.rpartition(":")
    context = ssl.create_default_context()
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    with raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="localhost")
    assert can_list(broker.kafka, {})
