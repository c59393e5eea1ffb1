"""Arbitrary bytes never make the HTTP listener fail: no traceback, no leak, no status 500.

One broker in a separate process serves all examples. Another client sends requests all the time,
and its p99 latency is printed. At the end the fixture checks open connections and memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.lines import Served, Wire, ask, http_get, until, wires
from support.neighbours import Neighbour, assert_leaves_nothing, resident_bytes

MEMORY_BYTES = 60 * 2**20
UPLOADS_BYTES = 128 * 2**20  # limit for all request bodies being read

METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"get", b"G\0T", b""]
TARGETS = [
    *(b"/healthz", b"/metrics", b"/api/topics", b"/api/readers", b"/api/cut", b"/api/staging"),
    *(
        b"/",
        b"*",
        b"//",
        b"/%",
        b"/?%ff=%",
        b"http://localhost/healthz",
        b"http://[",
        b"/\xff",
        b"",
    ),
    *(b"/api/topics?name=quiet", b"/api/topics?name=\xc3\xa4", b"/" + b"a" * 9000),
]
HEADERS = [
    *(b"Host: localhost", b"Host: evil.example", b"host:", b"Host: [::1", b"Origin: null"),
    *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999999"),
    *(b"Content-Length: 5, 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
    *(b"Content-Type: application/json", b"Content-Type: text/plain", b"Expect: 100-continue"),
    *(b"Connection: close", b"Upgrade: h2c", b": empty", b"no colon", b"x: " + b"y" * 3000),
    *(b" folded", b"x\0: y", b"Sec-Fetch-Site: cross-site"),
]
BODIES = [b"", b"{}", b'{"topic": "quiet"}', b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"\xff" * 50]
requests = st.tuples(
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b""]),
    st.lists(st.sampled_from(HEADERS), max_size=5),
    st.sampled_from([b"\r\n", b"\n", b"\r"]),
    st.sampled_from(BODIES),
).map(lambda r: r[4].join([b" ".join(r[:3]), *r[3], b"", b""]) + r[5])
conversations = st.one_of(
    st.binary(max_size=300), requests, st.lists(requests, max_size=4).map(b"".join)
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One broker for the module; its connections, memory and log are checked at the end."""
    with Served(tmp_path_factory.mktemp("fuzz") / "data", durability="os") as running:
        assert ask(running.control, "PUT quiet one") == b"OK"
        http_get(running.http, "/metrics")  # the first scrape loads modules, which is not a leak
        before = resident_bytes(running.process.pid)
        with Neighbour("http", reader(running)):
            yield running
        until(lambda: running.connections("http") == 0, "no HTTP connection is left")
        grown = resident_bytes(running.process.pid) - before
        print(f"memory grew by {grown / 2**20:.0f} MiB")
        assert grown < MEMORY_BYTES + UPLOADS_BYTES
        assert "Traceback" not in running.log()
        assert "http.failed" not in running.log()
        assert running.stop() == 0


def reader(running: Served) -> Callable[[], None]:
    """Return a function that requests one topic on a new connection."""

    def step() -> None:
        status, body = http_get(running.http, "/api/topics?name=quiet")
        assert (status, json.loads(body)["topics"][0]["name"]) == (200, "quiet")

    return step


def say(running: Served, data: bytes, cuts: list[int], *, is_rude: bool) -> bytes:
    """Send the data in pieces on one connection and return the reply."""
    wire = Wire(running.http)
    with contextlib.suppress(OSError):  # the broker may close the connection mid-request
        bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        for start, end in itertools.pairwise(bounds):
            wire.send(data[start:end])
    output = b""
    if is_rude:
        wire.reset()
        return output
    with contextlib.suppress(OSError):
        output = wire.end().rest()
    wire.close()
    return output


@given(data=conversations, cuts=st.lists(st.integers(0, 400), max_size=3), is_rude=st.booleans())
@example(data=b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", cuts=[], is_rude=True)
@settings(max_examples=200)
def test_any_bytes_at_the_http_listener_are_answered_or_ended(served, data, cuts, is_rude):
    """Any bytes, split anywhere, get an HTTP reply other than 500 or no reply."""
    output = say(served, data, cuts, is_rude=is_rude)
    assert b" 500 " not in output
    assert output == b"" or output.startswith(b"HTTP/1.1 ")


def test_what_follows_a_head_request_and_is_none_is_refused_and_ended(served):
    """Invalid bytes after a HEAD request get a 400 reply with a body, and the connection closes."""
    wire = Wire(served.http)
    wire.send(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n{}")
    first, _, second = wire.end().rest().partition(b"\r\n\r\n")
    wire.close()
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 400 ")
    assert second.endswith(b"}\n")


def test_bodies_that_never_end_take_bounded_memory_together(served):
    """Sixty incomplete 16 MB uploads use bounded memory; at least twenty get status 503.

    When these clients disconnect, their memory is released and the next upload succeeds.
    """
    head = (
        b"PUT /api/staging?job=fuzz&name=f HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 16000000\r\n\r\n"
    )
    before = resident_bytes(served.process.pid)
    with wires(served.http, 60) as crowd:
        for wire in crowd:
            with contextlib.suppress(OSError):
                wire.send(head + bytes(4_000_000))
        reader(served)()  # queued behind all uploads, so they have been processed
        grown = resident_bytes(served.process.pid) - before
        refused = [wire for wire in crowd if is_refused(wire)]
    print(f"{len(refused)} of 60 were told to wait, memory grew by {grown / 2**20:.0f} MiB")
    assert grown < UPLOADS_BYTES + MEMORY_BYTES
    assert len(refused) >= 20
    until(lambda: uploaded(served) == b"200", "their memory is given back")


def uploaded(running: Served) -> bytes:
    """Return the status of one small upload to a separate job."""
    wire = Wire(running.http)
    wire.send(
        b"PUT /api/staging?job=after&name=f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nbytes"
    )
    status = wire.rest().split()[1]
    wire.close()
    return status


def is_refused(wire: Wire) -> bool:
    """Whether the broker replied 503 before the whole body arrived."""
    wire.socket.settimeout(0.01)
    try:
        return wire.socket.recv(20).startswith(b"HTTP/1.1 503")
    except OSError:
        return False


def test_malformed_requests_leave_nothing_in_memory(tmp_path):
    """Repeated malformed requests do not increase the memory of a new broker."""
    kinds = [b"nonsense\r\n\r\n", b"GET /api/cut HTTP/1.1\r\nHost: localhost\r\n\r\n", b"G"]
    with Served(tmp_path / "data", durability="os") as running:

        def step() -> None:
            for data in kinds:
                say(running, data, [], is_rude=False)

        assert_leaves_nothing(running.process.pid, step)
        assert running.stop() == 0


def test_a_crowd_of_silent_and_slow_peers_costs_the_others_nothing(served):
    """Two hundred idle, incomplete or slow connections do not block other requests."""
    openings = [b"", b"G", b"GET /metrics HTTP/1.1\r\nHost: loc", b"POST /api/cut HTTP/1.1\r\nx:"]
    with wires(served.http, 200) as crowd:
        for wire, opening in zip(crowd, itertools.cycle(openings), strict=False):
            wire.send(opening)
        for _ in range(5):
            reader(served)()
            for wire in crowd[2::4]:
                wire.send(b"a")
