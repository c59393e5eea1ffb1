"""A web page in a browser cannot control a broker on the same machine or use its API.

Browsers let a page send requests to loopback addresses. These tests send such requests.
"""

from __future__ import annotations

import http.client
import json
import logging
import subprocess
import sys

import pytest

from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi, find_http
from cordwood.protocol.api.deliveries import DiscardJob
from cordwood.protocol.line.http_detection import HTTP_REPLY
from cordwood.server.http_api import ROUTES
from cordwood.testing import Broker
from support.http import JsonClient
from support.lines import Wire, ask, high_watermark, http_get, parse, until
from support.metadata import revision

PAGE = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:5675\r\nOrigin: http://evil.example\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 60\r\n\r\n"
)
ORDERS = (
    b"CONFIGURE keep retention.ms=0\nCUT keep\nRECLAIM keep\nPUT keep forged\nweb.k|1|1|forged\n"
)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "")


@pytest.fixture
def broker():
    with Broker(durability="os") as running:
        assert ask(running.control, "PUT keep one") == b"OK"
        yield running


def foreign(broker: Broker, listener: str) -> dict[str, int]:
    return dict(broker.service.server.listeners[listener].foreign)


def status(broker: Broker, method: str, path: str, body: bytes | None, **headers: str) -> int:
    """Send one request and return the reply's status code."""
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=30)
    options = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, options)
    answer = connection.getresponse()
    text = answer.read()
    assert json.loads(text), text
    connection.close()
    return answer.status


def test_commands_in_the_body_of_a_request_are_not_run(broker):
    """The control listener closes at the first HTTP line; the topic is unchanged."""
    with Wire(broker.control) as wire:
        assert wire.send(PAGE + ORDERS).rest().strip() == HTTP_REPLY.strip()
    assert ask(broker.control, "GET_ACK keep") == b"ACK 1"
    assert json.loads(ask(broker.control, "STATE keep"))["log_start_seq"] == 1
    assert foreign(broker, "control") == {"UNEXPECTED_HTTP": 1}


def test_lines_in_the_body_of_a_request_are_neither_stored_nor_dead_lettered(broker):
    """The ingress listener rejects an HTTP request and stores none of its body."""
    for body in (ORDERS, ORDERS + b"web.k|1|2|half"):
        with Wire(broker.ingress) as wire:
            assert b"400 Bad Request" in wire.send(PAGE + body).end().rest()
    assert high_watermark(broker.control) == 0
    assert high_watermark(broker.control, "dead_letter") == 0
    assert foreign(broker, "ingress") == {"UNEXPECTED_HTTP": 2}


@pytest.mark.parametrize("listener", ["control", "ingress", "http"])
def test_a_tls_handshake_at_a_plain_listener_is_diagnosed(broker, listener, caplog):
    """A TLS handshake on a plain listener is closed, counted and logged."""
    caplog.set_level(logging.WARNING)
    with Wire(broker.address(listener)) as wire:
        wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40))
        assert b"200" not in wire.rest()
    assert foreign(broker, listener) == {"UNEXPECTED_TLS": 1}
    (line,) = [r.getMessage() for r in caplog.records if "connection.foreign" in r.getMessage()]
    assert f"listener={listener}" in line
    assert "TLS" in line


def test_a_crowd_of_strangers_is_counted_and_logged_once(broker, caplog):
    """Repeated foreign connections are all counted, but only one is logged."""
    caplog.set_level(logging.WARNING)
    for _ in range(20):
        with Wire(broker.control) as wire:
            wire.send(PAGE).rest()
    output = [r for r in caplog.records if "connection.foreign" in r.getMessage()]
    assert (len(output), foreign(broker, "control")) == (1, {"UNEXPECTED_HTTP": 20})
    text = http_get(broker.http, "/metrics")[1]
    sample = 'cordwood_connections_foreign_total{error="UNEXPECTED_HTTP",listener="control"} 20.0'
    assert sample in text


def test_a_subscriber_that_turns_out_to_be_http_is_closed_too(broker):
    """An HTTP line on a subscribed connection closes it."""
    with Wire(broker.control) as wire:
        assert wire.send(b"SUBSCRIBE keep FROM_START\n").line().startswith(b"1|")
        wire.send(b"Host: x\r\n").rest()
    until(lambda: not broker.service.server.listeners["control"].connections, "it is gone")


# --- the HTTP listener ----------------------------------------------------------------------


def test_no_route_takes_what_a_foreign_page_may_send_unasked(broker):
    """Every route with a body rejects form, plain-text and untyped bodies with status 415."""
    for route in ROUTES:
        method, path = route.method, route.path
        for kind in FORMS:
            if route.takes is None:
                continue
            options = {"content_type": kind} if kind else {}
            assert status(broker, method, path, b'{"topic": "keep"}', **options) == 415, (
                path,
                kind,
            )
            assert status(broker, method, path, b"", **options) == 415, (path, kind)


def test_every_route_declares_what_it_takes(broker):
    """POST routes take JSON, PUT routes take bytes, and a GET with a body is rejected."""
    for route in ROUTES:
        wanted = {"POST": "application/json", "PUT": "application/octet-stream"}.get(route.method)
        assert (route.takes, route.path) == (wanted, route.path)
    assert status(broker, "GET", "/api/topics", b"{}", content_type="application/json") == 415


def test_no_get_changes_anything(broker):
    """No GET route changes metadata or topics, because a page can always make a browser GET."""
    store = broker.service.broker.store

    def state() -> tuple[object, ...]:
        changes = revision(store.directory.metadata_path)
        return changes, ask(broker.control, "STATE keep"), sorted(store.topics)

    before = state()
    for route in ROUTES:
        if route.method == "GET":
            assert status(broker, "GET", f"{route.path}?topic=keep&name=keep", None) in {200, 400}
            http_get(broker.http, route.path)
    assert state() == before


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example"},
        {"Host": "rebound.example:8080", "Origin": "http://rebound.example:8080"},
    ],
)
def test_a_foreign_page_is_refused_by_every_route_of_the_api(broker, page):
    """Foreign origins and hosts are rejected on every API route, also for reads."""
    for route in ROUTES:
        method, path = route.method, route.path
        if not path.startswith("/api/"):
            continue
        body = None if route.takes is None else b'{"topic": "keep"}'
        kind = {} if route.takes is None else {"Content-Type": route.takes}
        found = status(broker, method, path, body, **kind, **page)
        assert found == (421 if "Host" in page else 403), (method, path)
    assert sum(foreign(broker, "http").values()) > 10


def test_a_target_that_names_another_host_is_refused(broker):
    """The host in ``GET http://name/path`` overrides the Host header and must be allowed too."""
    with Wire(broker.http) as wire:
        output = wire.send(b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert output.rest().startswith(b"HTTP/1.1 421 Misdirected Request")


def test_the_brokers_own_page_may_use_the_api(broker):
    """Same-origin requests from the broker's own console are accepted."""
    own = {"Origin": f"http://{broker.http}", "Sec-Fetch-Site": "same-origin"}
    kind = {"Content-Type": "application/json"}
    assert status(broker, "POST", "/api/cut", b'{"topic": "keep"}', **kind, **own) == 200


def test_clients_come_in_by_the_names_a_broker_is_given():
    """A broker bound to all addresses accepts only configured, advertised and local hosts."""
    settings = {"http": "0.0.0.0:0", "http_allowed_hosts": "broker.example, *.pods.local"}
    with Broker(durability="os", advertised_kafka="kafka.example:9092", **settings) as broker:
        for name in ("broker.example", "a.pods.local", "kafka.example", "localhost", "127.0.0.1"):
            with Wire(broker.http.replace("0.0.0.0", "127.0.0.1")) as wire:
                wire.send(b"GET /metrics HTTP/1.1\r\nHost: %b:80\r\n" % name.encode())
                assert wire.send(b"Connection: close\r\n\r\n").rest().startswith(b"HTTP/1.1 200")
        with Wire(broker.http.replace("0.0.0.0", "127.0.0.1")) as wire:
            wire.send(b"GET /metrics HTTP/1.1\r\nHost: other.example\r\n\r\n")
            assert wire.rest().startswith(b"HTTP/1.1 421")


def test_a_broker_bound_to_every_address_is_found_by_the_name_it_was_asked_by():
    """A client uses the host name it connected to when the broker is bound to 0.0.0.0."""
    with Broker(durability="os", kafka="0.0.0.0:0", http="0.0.0.0:0") as broker:
        port = broker.kafka.rpartition(":")[2]
        http_port = broker.http.rpartition(":")[2]
        where = BrokerAddress(f"localhost:{port}")
        assert find_http(where) == (f"localhost:{http_port}", False)
        api = BrokerApi(BrokerAddress(f"localhost:{port}"))
        assert api.status().topics == 0
        api.close()


def test_our_own_clients_come_in_by_name(broker):
    """The command line and the pipeline client can reach the broker as localhost."""
    port = broker.http.rpartition(":")[2]
    JsonClient(f"localhost:{port}").post("/api/cut", {"topic": "keep"})
    api = BrokerApi(BrokerAddress(http=f"localhost:{port}"))
    api.upload("job", "file", b"bytes")
    api.call(DiscardJob("job"))
    assert api.partition_counts() == {"keep": 1}
    api.close()
    run = [sys.executable, "-m", "cordwood", "reader", "register", "keep", "r"]
    subprocess.run([*run, "--broker", broker.kafka], check=True, timeout=60)
