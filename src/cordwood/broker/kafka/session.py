"""The session of a Kafka request: what an answer depends on besides the request itself."""

from __future__ import annotations

from typing import NamedTuple


class Session(NamedTuple):
    """The peer of one connection, and the host and port by which it reaches this broker."""

    peer: str
    host: str
    port: int
    client_id: str | None = None
