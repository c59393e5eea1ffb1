"""A malformed or oversized request gets an error reply, and the connection closes.

``test_fuzz.py`` generates such bytes at random and only checks that no reply is a 500. These tests
send each kind of request on purpose and check its status and error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest

from cordwood.protocol.api.deliveries import DeliveryRow
from cordwood.server.http_listener import BODY_BYTES_MAX, HEADERS_BYTES_MAX
from cordwood.testing import Broker
from support.lines import Wire, is_blocked, until

HOST = b"Host: localhost\r\n"
JSON = HOST + b"Content-Type: application/json\r\n"
BYTES = HOST + b"Content-Type: application/octet-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
STAGE = b"PUT /api/staging?job=j&name=f HTTP/1.1\r\n"
PIECE = b"x: " + b"y" * 1000 + b"\r\n"
WIDE = PIECE * (HEADERS_BYTES_MAX // len(PIECE) + 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker for all tests of this module; each request uses its own connection."""
    with Broker(durability="os") as running:
        yield running


def refusal_of(broker: Broker, *parts: bytes) -> tuple[int, str, str]:
    """Send the parts, read until the broker closes; return status, error and message."""
    wire = Wire(broker.http)
    with contextlib.suppress(ConnectionError):  # the broker may reject it before all of it is sent
        for part in parts:
            wire.send(part)
    head, _, body = wire.rest().partition(b"\r\n\r\n")
    wire.close()
    answer = json.loads(body)
    return int(head.split()[1]), answer["error"], answer["message"]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"GET",
        b"GET /healthz",
        b"GET  /healthz HTTP/1.1",
        b"GET /healthz HTTP/1.1 more",
        b"GET /healthz HTTP/banana",
        b"G\0T /healthz HTTP/1.1",
        b"GET /\xff HTTP/1.1",
    ],
    ids=repr,
)
def test_a_bad_request_line_is_answered_and_named(broker, line):
    """An invalid request line gets status 400 and an error message."""
    status, error, message = refusal_of(broker, line + b"\r\n" + HOST + b"\r\n")
    assert (status, error) == (400, "INVALID_REQUEST")
    assert message.startswith("this is not an HTTP/1.1 request: ")


@pytest.mark.parametrize(
    ("request_", "status", "error", "message"),
    [
        (
            [b"GET http://[ HTTP/1.1\r\n", HOST, b"\r\n"],
            400,
            "INVALID_REQUEST",
            "target is not a URL",
        ),
        ([b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n"], 400, "INVALID_REQUEST", "not an HTTP/1.1"),
        (
            [b"GET /healthz HTTP/1.1\r\n", HOST, WIDE, b"\r\n"],
            431,
            "HEADERS_TOO_LARGE",
            "16384 bytes",
        ),
        ([b"GET /", b"a" * 20_000], 431, "HEADERS_TOO_LARGE", "16384 bytes"),
        ([b"GET /healthz HTTP/1.1\r\nx: ", b"y" * 20_000], 431, "HEADERS_TOO_LARGE", "send fewer"),
        (
            [STAGE, BYTES, b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1)],
            413,
            "BODY_TOO_LARGE",
            "at most 16777216 bytes",
        ),
        (
            [STAGE, BYTES, b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"],
            400,
            "INVALID_REQUEST",
            "bad Content-Length",
        ),
        (
            [STAGE, BYTES, CHUNKED, b"1000001\r\n", bytes(BODY_BYTES_MAX + 1)],
            413,
            "BODY_TOO_LARGE",
            "send less, or in parts",
        ),
        (
            [b"GET /healthz HTTP/1.1\r\n", HOST, CHUNKED, b"0\r\n\r\n"],
            415,
            "UNSUPPORTED_CONTENT_TYPE",
            "accepts no body",
        ),
        (
            [b"GET /nowhere HTTP/1.1\r\n", HOST, b"Connection: close\r\n\r\n"],
            404,
            "NOT_FOUND",
            "paths",
        ),
        (
            [b"DELETE /healthz HTTP/1.1\r\n", HOST, b"Connection: close\r\n\r\n"],
            405,
            "METHOD_NOT_ALLOWED",
            "/healthz takes GET",
        ),
        (
            [
                *(b"POST /api/cut?topic=t HTTP/1.1\r\n", JSON, b"Connection: close\r\n"),
                b'Content-Length: 14\r\n\r\n{"topic": "t"}',
            ],
            400,
            "INVALID_REQUEST",
            "in the body, not in the URL",
        ),
    ],
)
def test_a_request_that_cannot_be_taken_is_refused_by_name(
    broker, request_, status, error, message
):
    """Each invalid request gets its specific status, error code and message."""
    found = refusal_of(broker, *request_)
    assert found[:2] == (status, error)
    assert message in found[2]


def test_a_body_as_large_as_may_be_is_read(broker):
    """A body of exactly the maximum size is accepted."""
    head = STAGE + BYTES + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES_MAX
    wire = Wire(broker.http)
    wire.send(head + bytes(BODY_BYTES_MAX))
    assert wire.rest().startswith(b"HTTP/1.1 200 ")
    wire.close()


def test_headers_as_large_as_may_be_are_taken(broker):
    """Headers of exactly the maximum size are accepted; one more byte gets status 431."""
    for more, status in ((0, b"200"), (1, b"431")):
        names = len(b"host") + len(b"localhost") + len(b"x") + len(b"connection") + len(b"close")
        padding = b"y" * (HEADERS_BYTES_MAX - names + more)
        wire = Wire(broker.http)
        wire.send(
            b"GET /healthz HTTP/1.1\r\n"
            + HOST
            + b"Connection: close\r\nx: "
            + padding
            + b"\r\n\r\n"
        )
        assert wire.rest().split()[1] == status
        wire.close()


def test_what_is_sent_ahead_of_an_answer_is_not_read_without_end(broker, monkeypatch):
    """The listener stops reading a connection while a request is being handled (backpressure)."""
    deliveries, asked = broker.service.broker.deliveries, threading.Event()
    released = asyncio.Event()

    async def slow(_query: str) -> dict[str, DeliveryRow]:
        asked.set()
        await released.wait()
        return {}

    async def release() -> None:
        released.set()

    monkeypatch.setattr(deliveries, "describe", slow)
    ahead = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    wire = Wire(broker.http)
    wire.send(b"GET /api/deliveries?query=q HTTP/1.1\r\n" + HOST + b"\r\n")
    assert asked.wait(30)
    try:
        assert is_blocked(wire, ahead * 10_000, 100)
    finally:
        broker.run(release)
        wire.reset()


@pytest.mark.parametrize("data", [b"G", b"nonsense\r\n\r\n", STAGE + BYTES + CHUNKED + b"5\r\nab"])
def test_a_peer_that_sends_no_more_is_not_waited_for(broker, data):
    """After an error reply to a half-closed client, the connection is released immediately."""
    broker.service.http.linger_s = 3600.0
    with Wire(broker.http) as wire:
        assert wire.send(data).end().rest().startswith(b"HTTP/1.1 400 ")
        until(lambda: not broker.service.server.listeners["http"].connections, "its place is free")
