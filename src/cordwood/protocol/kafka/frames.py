"""One frame: a request header and its body in, a response header and its buffers out.

The request header begins the same in every version (key, version, correlation id, client id), so a
frame of an API or version we do not serve can be told from garbage. Flexible versions add a tag
section to both headers, except for the ApiVersions response header: its reader does not know yet
which versions we speak.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

from cordwood.errors import BadMessage
from cordwood.protocol.kafka.codec import ANY_ELEMENTS, decode, encode
from cordwood.protocol.kafka.primitives import DECODE_FAULTS, Buffer, skip_tags
from cordwood.protocol.kafka.schema import (
    API_BY_KEY,
    API_VERSIONS,
    PRODUCE,
    UNSUPPORTED_VERSION,
    KafkaApi,
    api_of,
    api_versions,
)

_REQUEST = Struct(">hhih")  # key, version, correlation id, length of the client id
_RESPONSE = Struct(">ii")  # frame length, correlation id
_RESPONSE_TAGGED = Struct(">iix")
_SIZED_REQUEST = Struct(">ihhih")
CONTROL_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest request without records: one as long as a Produce may be, made of tiny entries, would
keep the loop from every other connection while it is decoded."""
REQUEST_BYTES_MIN: Final = _REQUEST.size
"""No request is shorter than its header with a null client id."""


class Request(NamedTuple):
    """A request of an API and version we serve; its body is not decoded yet."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


class Unsupported(NamedTuple):
    """A well-formed header of an API or version we do not serve."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request(frame: Buffer) -> Request | Unsupported:
    """Parse the header of one frame, without its length prefix."""
    view = memoryview(frame)
    try:
        key, version, correlation_id, size = _REQUEST.unpack_from(view)
        position = _REQUEST.size + max(size, 0)
        if size < -1 or position > len(view):
            raise ValueError(f"invalid client id length {size}")
        client_id = str(view[_REQUEST.size : position], "utf-8", "replace") if size >= 0 else None
        api = API_BY_KEY.get(key)
        if api is None or not api.is_served(version):
            return Unsupported(key, version, correlation_id, client_id)
        if len(view) > CONTROL_BYTES_MAX and key != PRODUCE:
            raise ValueError(f"{api.name} is limited to {CONTROL_BYTES_MAX} bytes")
        if api.is_flexible(version):
            position = skip_tags(view, position)
            if position > len(view):
                raise ValueError(f"tags up to byte {position}")
    except DECODE_FAULTS as error:
        raise BadMessage(f"request header in a frame of {len(view)} bytes: {error}") from error
    return Request(key, version, correlation_id, client_id, view[position:])


def decode_request(request: Request, elements_max: int = ANY_ELEMENTS) -> Any:
    """Decode the message of a request; use ``decode(FetchRequest, …)`` if the type is known."""
    message_type = API_BY_KEY[request.api_key].request
    return decode(message_type, request.api_version, request.body, elements_max)


def encode_response(request: Request, message: tuple[Any, ...]) -> list[Buffer]:
    """Encode a reply as a list of buffers to send in order, starting with the length prefix."""
    api = API_BY_KEY[request.api_key]
    assert type(message) is api.response, (type(message), api.name)
    return _reply(api, request.api_version, request.correlation_id, message)


def _reply(api: KafkaApi, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    has_tags = api.is_flexible(version) and api.key != API_VERSIONS
    head = _RESPONSE_TAGGED if has_tags else _RESPONSE
    chunks = encode(message, version)
    length = head.size - 4 + sum(map(len, chunks))
    chunks[0] = head.pack(length, correlation_id) + chunks[0]
    return chunks


def unsupported_version_response(request: Unsupported) -> list[Buffer] | None:
    """Return our ApiVersions in version 0, or None if the connection must be closed.

    No other API has a reply that a client of an unknown version could read.
    """
    if request.api_key != API_VERSIONS:
        return None
    message = api_versions(UNSUPPORTED_VERSION)
    return _reply(API_BY_KEY[API_VERSIONS], 0, request.correlation_id, message)


# --- the client side ------------------------------------------------------------------------


def encode_request(
    message: tuple[Any, ...], version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Encode a request as a list of buffers to send in order, starting with the length prefix."""
    api = api_of(type(message))
    name = b"" if client_id is None else client_id.encode()
    name_length = -1 if client_id is None else len(name)
    tail = name + b"\0" if api.is_flexible(version) else name
    chunks = encode(message, version)
    length = REQUEST_BYTES_MIN + len(tail) + sum(map(len, chunks))
    head = _SIZED_REQUEST.pack(length, api.key, version, correlation_id, name_length)
    chunks[0] = head + tail + chunks[0]
    return chunks


def parse_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Return correlation id and message of a response frame, without its length prefix."""
    api = API_BY_KEY[api_key]
    view = memoryview(frame)
    position = 4
    try:
        if api.is_flexible(version) and api_key != API_VERSIONS:
            position = skip_tags(view, position)
    except DECODE_FAULTS as error:
        raise BadMessage(f"response header of {len(view)} bytes: {error}") from error
    if position > len(view):
        raise BadMessage(
            f"response header: {position} bytes were expected, but {len(view)} were sent"
        )
    correlation_id = int.from_bytes(view[:4], "big", signed=True)
    return correlation_id, decode(api.response, version, view[position:])
