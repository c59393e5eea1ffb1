"""Tells HTTP from lines: a browser sends what a web page says to any port, also to these.

A page cannot open a socket, but it can send a request whose body is a list of our commands. It
cannot choose how that begins: with a request line, and soon a ``Host`` header. Whoever begins so is
no client of ours, and nothing of what follows may be run (Redis learned it the same way).
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
    """Whether a line is how an HTTP request begins; no command and no topic looks so."""
    return _REQUEST_LINE.match(line) is not None


def is_http(line: bytes) -> bool:
    """Whether a line that is no command betrays HTTP: a request line, ``POST`` or ``Host:``."""
    return is_request_line(line) or _LATER_LINE.match(line) is not None


def http_error() -> UnexpectedHttp:
    """What the peer did, for the log and for whoever reads lines."""
    return UnexpectedHttp(
        "an HTTP request came to a line listener, and nothing of it was run; "
        "HTTP has a port of its own (the setting http)"
    )


def encode_refusal(error: CordwoodError) -> bytes | None:
    """The last words to a peer that does not speak lines, in its own protocol if we have some."""
    return HTTP_REPLY if isinstance(error, UnexpectedHttp) else None
