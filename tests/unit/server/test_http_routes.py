"""Bodies are bounded by their values before they are parsed, and long ones stop nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cordwood.errors import RequestError
from cordwood.protocol.api.messages import Deliver
from cordwood.server import http_routes
from cordwood.server.http_routes import (
    LONG_VALUES_MAX,
    VALUES_MAX,
    HttpRequest,
    HttpResponse,
    HttpRoute,
    by_json,
    by_long_json,
)


async def handler(request: Deliver) -> HttpResponse:
    return HttpResponse.of(len(request.parts))


def query(parts: int) -> HttpRequest:
    part = {"topic": "t", "partition": 0, "file": "f", "sha256": "s"}
    said = {"query": "q", "batch": 1, "job": "j", "parts": [part] * parts}
    return HttpRequest("POST", "/", "", json.dumps(said).encode())


@pytest.fixture(params=["short", "long"])
def bounded(request) -> tuple[HttpRoute, int]:
    """A route and how many values its body may have."""
    if request.param == "short":
        return by_json(Deliver, handler), VALUES_MAX
    return by_long_json(Deliver, handler, asyncio.Semaphore(1)), LONG_VALUES_MAX


async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(bounded, monkeypatch):
    """Sixteen megabytes of empty lists took the event loop five seconds."""
    route, most = bounded

    def parsed(*_: Any) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(http_routes, "decode_json", parsed)
    monkeypatch.setattr(http_routes, "decode_json_aside", parsed)
    body = b'{"parts": [' + b"[]," * most + b"[]]}"
    with pytest.raises(RequestError, match=f"more than {most:,} values"):
        await route.answer(HttpRequest("POST", "/", "", body))


async def test_a_long_body_is_decoded_while_others_are_served():
    """On a thread that gives the GIL up; the loop goes round meanwhile."""
    route = by_long_json(Deliver, handler, asyncio.Semaphore(1))
    answer = asyncio.ensure_future(route.answer(query(20_000)))
    rounds = 0
    while not answer.done():
        await asyncio.sleep(0)
        rounds += 1
    assert json.loads((await answer).body) == 20_000
    assert rounds > 10


async def test_a_short_body_of_a_long_route_is_decoded_at_once(monkeypatch):
    """A thread would cost more than it saves."""
    monkeypatch.setattr(http_routes, "decode_json_aside", None)
    route = by_long_json(Deliver, handler, asyncio.Semaphore(1))
    assert json.loads((await route.answer(query(10))).body) == 10


async def test_long_bodies_are_decoded_one_at_a_time(monkeypatch):
    """Each thread that decodes takes the GIL from the event loop once more."""
    at_work, most = 0, 0
    whole = http_routes.decode_json_aside

    def decode(*arguments: Any) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            return whole(*arguments)
        finally:
            at_work -= 1

    monkeypatch.setattr(http_routes, "decode_json_aside", decode)
    route = by_long_json(Deliver, handler, asyncio.Semaphore(1))
    await asyncio.gather(*(route.answer(query(6_000)) for _ in range(4)))
    assert most == 1
