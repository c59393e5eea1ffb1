"""What a flow may ask of the world, and the address it is asked of.

A flow is a generator: it yields an effect, is sent its result, and sees an ``OSError`` raised at
the yield when the effect failed. Two drivers run flows: one with blocking sockets, one
with asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cordwood.errors import RequestError

T = TypeVar("T")


class Address(NamedTuple):
    """Where a listener is."""

    host: str
    port: int

    def __str__(self) -> str:
        """As users write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection, in place of the one there was."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """Write all the data, taking in meanwhile what arrives; the result is what arrived.

    Awaited, it also waits for something to arrive. When the time is over it fails if data is still
    unwritten, and else results in nothing. Reading while writing is what keeps two peers that both
    have much to say from blocking each other.
    """

    data: bytes
    is_awaited: bool
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass."""

    seconds: float


Effect = Connect | Transfer | Pause
Flow = Generator[Effect, bytes, T]


def parse_address(address: str | tuple[str, int]) -> Address:
    """``HOST:PORT``, ``[IPV6]:PORT`` or a pair."""
    if isinstance(address, tuple):
        return Address(*address)
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise RequestError(f"{address!r} is not an address; write HOST:PORT")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
