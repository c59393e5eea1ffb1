"""Long replies are streamed; the framing depends on the HTTP version and method."""

from __future__ import annotations

import http.client
import json

import pytest

from cordwood.server.http_api import PART_BYTES
from cordwood.testing import Broker
from support.lines import Wire, ask, parse

PATH = "/api/v1/topics?name=wide"


@pytest.fixture(scope="module")
def broker():
    """A broker with a topic whose description takes several parts."""
    with Broker(durability="os", num_partitions=600) as running:
        assert ask(running.control, "PUT wide one") == b"OK"
        yield running


def asked(broker: Broker, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=30)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_a_long_listing_is_sent_in_chunks_and_is_whole(broker):
    """A long listing uses chunked encoding and contains each partition once, in order."""
    response, body = asked(broker, "GET", PATH)
    assert response.getheader("transfer-encoding") == "chunked"
    assert response.getheader("content-length") is None
    assert len(body) > 2 * PART_BYTES
    (topic,) = json.loads(body)["topics"]
    assert [part["partition"] for part in topic["partitions"]] == list(range(600))


def test_a_connection_goes_on_after_a_stream(broker):
    """A connection can be reused for further requests after a streamed reply."""
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=30)
    for path in (PATH, "/healthz", PATH):
        connection.request("GET", path)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
    connection.close()


def test_a_client_of_http_1_0_gets_the_stream_until_the_connection_ends(broker):
    """An HTTP/1.0 client gets the whole reply without chunked encoding."""
    with Wire(broker.http) as wire:
        output = wire.send(f"GET {PATH} HTTP/1.0\r\n\r\n".encode()).rest()
    head, _, body = output.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert len(json.loads(body)["topics"][0]["partitions"]) == 600


def test_head_of_a_stream_has_no_body(broker):
    """HEAD on a streamed route returns status 200 and no body."""
    response, body = asked(broker, "HEAD", PATH)
    assert (response.status, body) == (200, b"")


def test_an_error_before_the_first_part_is_an_answer_of_its_own(broker):
    """An unknown topic gets status 404, because no status is sent before the first part."""
    response, body = asked(broker, "GET", "/api/v1/topics?name=nowhere")
    assert (response.status, json.loads(body)["error"]) == (404, "UNKNOWN_TOPIC")
