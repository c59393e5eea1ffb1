"""Detects HTTP on a line listener: a web page can make a browser send requests to any port.

A page cannot open a socket, but it can send a request whose body is a list of our commands. It
cannot choose how the request begins: with a request line, and soon a ``Host`` header. A peer that
begins this way is not our client, and nothing that follows may be run (Redis has the same rule).
"""

from __future__ import annotations

import re
from typing import Final

from cordwood.errors import CordwoodError, UnexpectedHttp

_REQUEST_LINE = re.compile(rb"[A-Z][A-Z-]{2,31} (?:/|\* |[A-Za-z]+://|\S+ HTTP/\d)")
_LATER_LINE = re.compile(rb"(?:host:|post(?:\s|$))", re.IGNORECASE)

_TEXT: Final = b"This is a line listener, not HTTP. Nothing was run. HTTP has a port of its own.\n"
HTTP_REPLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nx-content-type-options: nosniff\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)


def is_request_line(line: bytes) -> bool:
    """Whether a line begins an HTTP request; no command and no topic looks like this."""
    return _REQUEST_LINE.match(line) is not None


def is_http(line: bytes) -> bool:
    """Whether a line that is no command indicates HTTP: a request line, ``POST`` or ``Host:``."""
    return is_request_line(line) or _LATER_LINE.match(line) is not None


def http_error() -> UnexpectedHttp:
    """Create the error for the log and for a peer that reads lines."""
    return UnexpectedHttp(
        "an HTTP request arrived at a line protocol listener and was not executed; HTTP has its "
        "own port (setting http)"
    )


def encode_refusal(error: CordwoodError) -> bytes | None:
    """Return the reply to a peer of another protocol, in that protocol, or None if we have none."""
    return HTTP_REPLY if isinstance(error, UnexpectedHttp) else None
