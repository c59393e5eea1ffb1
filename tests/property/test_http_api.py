"""Every HTTP route answers any JSON with a result or a JSON error, never with status 500."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.server import http_api
from cordwood.server.http_routes import HttpRoute
from cordwood.testing import Broker
from support.lines import ask, parse

ROUTES = {(route.method, route.path): route for route in http_api.ROUTES}


def kinds(route: HttpRoute) -> tuple[Any, ...]:
    """Return the message types of a route; ``action`` tells them apart if there are several."""
    return get_args(route.message) or (route.message,)


NAMES = sorted(
    {"action"}
    | {
        name
        for route in ROUTES.values()
        for component in msgspec.json.schema_components([route.message])[1].values()
        for name in component.get("properties", ())
    }
)
WORDS = [
    *("t", "append", "nowhere", "register", "remove", "advance", "reset", "begin", "renew"),
    *("finish", "fail", "release", "exact", "prefix", "a.b", "..", "/", "job", "1", "\ud800", "\0"),
]
numbers = st.one_of(
    st.integers(-2, 3),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**400]),
    st.floats(),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(WORDS), st.text(max_size=5))
objects = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=3)), inner, max_size=5),
    ),
    max_leaves=12,
)


def right(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Generate objects with the fields of a message, some with valid values."""
    tag = kind.__struct_config__.tag
    return st.fixed_dictionaries(
        {"action": st.just(tag)} if tag else {},
        optional={name: st.one_of(leaves, objects) for name in kind.__struct_fields__},
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Start a broker with a topic of three records."""
    with Broker(durability="os") as running:
        for number in range(3):
            assert ask(running.control, f"PUT t {number}") == b"OK"
        yield running


def answered(broker: Broker, place: tuple[str, str], params: str, body: bytes) -> None:
    method, path = place
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=60)
    takes = ROUTES[place].takes
    kind = {"content-type": takes} if takes else {}
    connection.request(method, path + params, body if takes else None, kind)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status in {200, 400, 404, 409, 503}, (answer.status, text)
    if answer.status != 200:
        assert set(json.loads(text)) >= {"error", "message"} or path == "/readyz"
        assert b"INTERNAL" not in text


BODIES = sorted(place for place, route in ROUTES.items() if route.takes == "application/json")
PARAMS = sorted(place for place, route in ROUTES.items() if route.takes != "application/json")


@pytest.mark.parametrize("place", BODIES, ids=" ".join)
@given(data=st.data())
def test_any_json_body_is_answered_or_refused(broker, place, data):
    """This holds for any field values and for bodies that are not objects."""
    fitting = [right(kind) for kind in kinds(ROUTES[place])]
    body = data.draw(st.one_of(*fitting, objects, st.binary(max_size=20)))
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answered(broker, place, "", raw)


@pytest.mark.parametrize("place", BODIES, ids=" ".join)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 50_000,
        b'{"topic":' * 50_000,
        b"1" * 5_000,
        b'{"topic": NaN}',
        b'{"topic": "t", "topic": "u"}',
        b'{"topic": "\\ud800"}',
        b"\xff\xfe",
        b'{"topic": [' + b"[]," * 1_000_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % number for number in range(50_000)) + b',"9":2}',
    ],
    ids=["deep", "deeper", "long", "nan", "twice", "surrogate", "bytes", "many", "names"],
)
def test_a_body_that_json_parsers_choke_on_is_refused(broker, place, body):
    """Every route uses the same JSON decoder, so every route refuses these bodies."""
    answered(broker, place, "", body)


@pytest.mark.parametrize("place", PARAMS, ids=" ".join)
@given(
    pairs=st.lists(
        st.tuples(
            st.one_of(st.sampled_from(NAMES), st.text(max_size=3)),
            st.one_of(st.sampled_from(WORDS[:-2]), st.text(max_size=5)),
        ),
        max_size=3,
    ),
    raw=st.sampled_from(["", "%", "%ff", "&&", "=", "%00"]),
)
@example(pairs=[("name", "t"), ("name", "u")], raw="")
def test_any_parameters_are_answered_or_refused(broker, place, pairs, raw):
    """Unknown names, wrong encodings and repeated names are answered or refused."""
    quoted = "&".join(f"{quote(a.encode('utf-8', 'replace'))}={quote(b)}" for a, b in pairs)
    answered(broker, place, f"?{quoted}{raw}", b"bytes")
