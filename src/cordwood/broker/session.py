"""The session of a connection: who asks, over which listener, and where the peer reached us.

A listener makes one session per connection (``server.listeners.Listener.session``) and hands it to
the service with every request: Kafka, ingress, control and HTTP. A session never changes. What a
peer tells later, such as Kafka's client id, makes a new session with ``dataclasses.replace``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"  # Kafka's principal of a peer that did not authenticate


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What an answer depends on besides the request itself."""

    principal: str = ANONYMOUS
    listener: str  # "kafka", "ingress", "control" or "http"
    peer: str  # the address and port of the client, for logs
    client_id: str | None = None  # the name the client gives itself, if its protocol has one
    host: str  # where this peer reaches the broker: the advertised address, else the socket's own
    port: int
