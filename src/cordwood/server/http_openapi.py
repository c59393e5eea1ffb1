"""The OpenAPI document of the HTTP listener, made from the routing table and the API's messages.

Nothing is written down twice: a path and its method come from the route, fields and replies from
the message's type, and the text from the handler's docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec

from cordwood.protocol.api.call import Call, Failure
from cordwood.server.http_routes import BYTES, JSON, HttpRoute
from cordwood.version import __version__

COMPONENTS: Final = "#/components/schemas/{name}"
REFUSED: Final = {"description": "Refused or failed; ``error`` is a name of docs/errors.md."}


def openapi(routes: Iterable[HttpRoute]) -> dict[str, Any]:
    """Return the document as plain values."""
    routes = tuple(routes)
    types = [kind for route in routes for kind in _types(route)]
    schemas, components = msgspec.json.schema_components([*types, Failure], ref_template=COMPONENTS)
    schema_of = dict(zip([*types, Failure], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, schema_of, components
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "cordwood", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(route: HttpRoute) -> list[Any]:
    """Return the type of the request and those of its replies."""
    calls = get_args(route.message) or (route.message,)
    return [route.message, *(call.reply_type() for call in calls if issubclass(call, Call))]


def _operation(
    route: HttpRoute, schema_of: dict[Any, Any], components: dict[str, Any]
) -> dict[str, Any]:
    message, *replies = _types(route)
    one_of = list({str(schema_of[kind]): schema_of[kind] for kind in replies}.values())
    reply = {"anyOf": one_of} if len(one_of) > 1 else (one_of or [{}])[0]
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_')}",
        "summary": (inspect.getdoc(route.handler) or "").replace("``", "`"),
        "responses": {
            str(HTTPStatus.OK.value): {"description": "The reply.", "content": _content(reply)},
            "default": {**REFUSED, "content": _content(schema_of[Failure])},
        },
    }
    if route.takes == JSON:
        operation["requestBody"] = {"required": True, "content": _content(schema_of[message])}
        return operation
    if route.takes == BYTES:
        body = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": {BYTES: body}}
    operation["parameters"] = _parameters(route, components[message.__name__])
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema}}


def _parameters(route: HttpRoute, schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in route.path else "query",
            "required": name in schema.get("required", ()),
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]
