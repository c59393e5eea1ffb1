"""The OpenAPI document describes exactly the routing table, and its references resolve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cordwood.server.http_api import ROUTES
from cordwood.server.http_openapi import openapi

DOCUMENT = json.loads(json.dumps(openapi(ROUTES)))


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_route_is_an_operation_and_nothing_else_is():
    """Every route is an operation. Paths without a version are not listed."""
    assert {(m, p) for m, p, _ in operations()} == {(r.method, r.path) for r in ROUTES}


def test_every_reference_resolves_and_every_operation_has_its_own_id():
    """Every reference resolves, and operation ids are unique, as generated clients require."""
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))


def test_an_operation_takes_what_its_route_takes():
    """An operation has the body type of its route, or parameters with the required ones marked."""
    takes = {(route.method, route.path): route.takes for route in ROUTES}
    for method, path, operation in operations():
        body = operation.get("requestBody", {}).get("content", {})
        assert list(body) == ([takes[method, path]] if takes[method, path] else []), path
    upload = DOCUMENT["paths"]["/api/v1/staging"]["put"]["parameters"]
    assert [(each["name"], each["in"], each["required"]) for each in upload] == [
        ("job", "query", True),
        ("name", "query", True),
    ]


def test_a_reply_and_a_refusal_have_their_types():
    """Replies and errors refer to their schemas."""
    responses = DOCUMENT["paths"]["/api/v1/readers"]["get"]["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ReaderList"}
    row = DOCUMENT["components"]["schemas"]["ReaderRow"]
    assert set(row["required"]) == {"reader", "topic", "partition", "seq", "lag", "held_bytes"}
    refused = responses["default"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/Failure"}


def test_compaction_reports_are_distinguished_by_their_action():
    """The compaction operation accepts five requests, which differ by their ``action``."""
    body = DOCUMENT["paths"]["/api/v1/compaction"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert schema["discriminator"]["propertyName"] == "action"
    assert len(schema["anyOf"]) == 5
