"""HTTP requests sent to a line listener are detected and refused."""

from __future__ import annotations

import pytest

from cordwood.errors import UnexpectedHttp
from cordwood.protocol.line.commands import COMMANDS, Put
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.http_detection import is_http
from cordwood.protocol.line.ingress import IngressConnection, Lines

REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /api HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nREMOVE t r\n",
    b"PUT /orders HTTP/1.1\r\n\r\nPUT t x\n",
    b"DELETE /|1|1|x HTTP/1.1\r\n\r\nk|1|1|v\n",
    b"OPTIONS * HTTP/1.1\r\n\r\nk|1|1|v\n",
    b"CONNECT host:443 HTTP/1.1\r\n\r\nk|1|1|v\n",
    b"GET http://host/ HTTP/1.0\n\nk|1|1|v\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\n",
    b"RESET / HTTP/1.1\r\n\r\n",
    b"HELP / HTTP/1.1\r\n\r\n",
    b"POST /" + b"x" * 300 + b" HTTP/1.1\r\nHost: x\r\n\r\nRECLAIM\nk|1|1|v\n",  # above the limit
]


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", REQUESTS, ids=lambda data: data[:12].decode())
def test_a_control_connection_that_begins_like_http_runs_nothing(data, size):
    """A control connection that starts with an HTTP request runs no command."""
    connection = ControlConnection(200)
    found: list[object] = []

    def receive() -> None:
        for start in range(0, len(data), size):
            connection.receive(data[start : start + size])
            while (request := connection.next_request()) is not None:
                found.append(request)

    with pytest.raises(UnexpectedHttp):
        receive()
    assert found == []


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("data", REQUESTS, ids=lambda data: data[:12].decode())
def test_an_ingress_connection_that_begins_like_http_gives_no_line(data, size):
    """An ingress connection that starts with an HTTP request gives no record and no dead letter."""
    connection = IngressConnection(200)

    def receive() -> None:
        for start in range(0, len(data), size):
            connection.receive(data[start : start + size])

    with pytest.raises(UnexpectedHttp):
        receive()
    assert connection.next_event() is None
    connection.receive_eof()
    assert connection.next_event() is None


@pytest.mark.parametrize("line", [b"Host: evil\r\n", b"host:x\n", b"POST\n", b"post / HTTP/1.1\n"])
def test_a_header_that_comes_later_ends_a_control_connection(line):
    """An HTTP header after other lines closes a control connection. Earlier commands are run."""
    connection = ControlConnection(200)
    connection.receive(b"PUT t one\nnonsense\n" + line + b"RECLAIM\n")
    assert connection.next_request() == Put("t", b"one")
    assert isinstance(connection.next_request(), Refused)
    with pytest.raises(UnexpectedHttp):
        connection.next_request()


@pytest.mark.parametrize(
    "line",
    [
        b"PUT orders GET / HTTP/1.1\n",
        b"PUT orders Host: evil\n",
        b"PUT HTTP HTTP/1.1\n",
        b"GET orders\n",
        b"SUBSCRIBE post FROM_START\n",
    ],
)
def test_a_command_may_carry_what_looks_like_http(line):
    """The payload of a valid command may look like HTTP."""
    connection = ControlConnection(200)
    connection.receive(line)
    assert not isinstance(connection.next_request(), Refused | None)


def test_no_usage_of_a_command_looks_like_http():
    """No command's usage looks like HTTP."""
    assert [name for name in COMMANDS if is_http(COMMANDS[name].usage.encode())] == []


def test_records_may_look_like_http_after_the_first_line_and_keys_at_any_time():
    """Records after the first line may look like HTTP, and so may keys."""
    connection = IngressConnection(200)
    block = b"GET|1|1|/ HTTP/1.1\nPOST / HTTP/1.1\nHost: x\nweb GET /|1|2|v\n"
    connection.receive(block)
    assert connection.next_event() == Lines(block)
