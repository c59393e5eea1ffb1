"""Who is asking, as far as an answer depends on it."""

from __future__ import annotations

from typing import NamedTuple


class Session(NamedTuple):
    """One connection's other end, and the address by which it reaches us."""

    peer: str
    host: str
    port: int
    client_id: str | None = None
