"""HTTP routes: path patterns, limits on bodies, and decoding of large bodies on a thread."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from cordwood.broker.session import Session
from cordwood.errors import MethodNotAllowed, RequestError, UnknownPath
from cordwood.protocol.api.codec import decode_json_on_thread
from cordwood.protocol.api.deliveries import Deliver
from cordwood.server.http_routes import (
    LONG_VALUES_MAX,
    VALUES_MAX,
    HttpRequest,
    HttpRoute,
    Router,
    api_route,
)
from support.loop_turns import counted_turns

SESSION = Session(listener="http", peer="127.0.0.1:1", host="127.0.0.1", port=8080)


async def count_parts(_: Any, request: Deliver) -> int:
    return len(request.parts)


def router(route: HttpRoute, **more: Any) -> Router:
    return Router([route], lambda session: session, **more)


def long_router(**more: Any) -> Router:
    return router(api_route(Deliver, count_parts, is_long=True), **more)


def query(parts: int) -> HttpRequest:
    part = {"topic": "t", "partition": 0, "file": "f", "sha256": "s"}
    options = {"query": "q", "batch": 1, "job": "j", "parts": [part] * parts}
    return HttpRequest("POST", "/api/v1/deliveries", "", json.dumps(options).encode())


async def answer(routes: Router, request: HttpRequest) -> Any:
    return json.loads((await routes.answer(request, SESSION)).body)


# --- finding a route ------------------------------------------------------------------------


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    partition: int
    brief: str | None = None


async def echo(session: Session, where: Where) -> Any:
    return {"topic": where.topic, "partition": where.partition, "peer": session.peer}


def by_pattern() -> Router:
    path = "/topics/{topic}/partitions/{partition}"
    return Router(
        [HttpRoute(Where, echo, path), HttpRoute(Where, echo, path, "DELETE")], lambda s: s
    )


async def test_the_fields_of_a_path_reach_the_handler_with_the_session():
    """Path fields reach the handler together with URL parameters and the session.

    A path field matches one segment and is decoded like a parameter.
    """
    request = HttpRequest("GET", "/topics/a b&c/partitions/7", "brief=1", b"")
    found = await answer(by_pattern(), request)
    assert found == {"topic": "a b&c", "partition": 7, "peer": SESSION.peer}
    with pytest.raises(RequestError, match=r"\$\.partition: expected int, got str"):
        await answer(by_pattern(), HttpRequest("GET", "/topics/a/partitions/x", "", b""))
    with pytest.raises(RequestError, match="has a parameter twice"):
        await answer(by_pattern(), HttpRequest("GET", "/topics/a/partitions/7", "topic=b", b""))


def test_a_path_that_no_pattern_matches_is_unknown_and_a_method_is_named():
    """An unknown path is refused with the known paths, and a wrong method with the valid ones."""
    with pytest.raises(UnknownPath, match=r"paths: /topics/\{topic\}/partitions/\{partition\}"):
        by_pattern().find(HttpRequest("GET", "/topics/a/b/partitions/7", "", b""))
    with pytest.raises(MethodNotAllowed, match="takes DELETE, GET"):
        by_pattern().find(HttpRequest("POST", "/topics/a/partitions/7", "", b""))


def test_a_path_without_its_version_is_the_same_route():
    """A path without the version finds the same route. Similar prefixes do not match."""
    routes = long_router()
    for path in ("/api/v1/deliveries", "/api/deliveries"):
        assert routes.find(HttpRequest("POST", path, "", b""))[0].message is Deliver
    for path in ("/apideliveries", "/api/v1/v1/deliveries", "/api/v2/deliveries", "/deliveries"):
        with pytest.raises(UnknownPath):
            routes.find(HttpRequest("POST", path, "", b""))


# --- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(is_long):
    """A body with too many values is refused before it is parsed.

    Parsing 16 MB of empty lists blocked the event loop for five seconds.
    """

    def parsed(*_: Any) -> None:
        raise AssertionError("it was parsed")

    most = LONG_VALUES_MAX if is_long else VALUES_MAX
    routes = router(
        api_route(Deliver, count_parts, is_long=is_long), decode=parsed, decode_on_thread=parsed
    )
    body = b'{"parts": [' + b"[]," * most + b"[]]}"
    with pytest.raises(RequestError, match=f"more than {most:,} values"):
        await answer(routes, HttpRequest("POST", "/api/v1/deliveries", "", body))


async def test_a_long_body_is_decoded_while_others_are_served():
    """A large body is decoded on a thread, and the event loop runs meanwhile."""
    async with counted_turns() as turns:
        assert await answer(long_router(), query(20_000)) == 20_000
    assert turns.count > 10


async def test_a_short_body_of_a_long_route_is_decoded_at_once():
    """A small body is decoded on the event loop, even on a route for large bodies."""

    def aside(*_: Any) -> None:
        raise AssertionError("it was decoded on a thread")

    assert await answer(long_router(decode_on_thread=aside), query(10)) == 10


async def test_long_bodies_are_decoded_one_at_a_time():
    """Only one large body is decoded at a time, to limit contention for the GIL."""
    at_work, most = 0, 0

    def decode(*arguments: Any) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            return decode_json_on_thread(*arguments)
        finally:
            at_work -= 1

    routes = long_router(decode_on_thread=decode)
    await asyncio.gather(*(answer(routes, query(6_000)) for _ in range(4)))
    assert most == 1
