"""The I/O that a flow may request, and the address of a listener.

A flow is a generator: it yields an effect and is sent the result; if the effect fails, ``OSError``
is raised at the yield. Two drivers run flows: one with blocking sockets, one with asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cordwood.errors import RequestError

T = TypeVar("T")


class Address(NamedTuple):
    """The address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        """Format it as ``HOST:PORT``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; it replaces the previous one."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """Write all the data and read what arrives meanwhile; the result is what arrived.

    If awaited, it also waits until something arrives. On time-out it fails if data is still
    unwritten, otherwise the result is empty. Reading while writing prevents a deadlock between two
    peers that both have much to send.
    """

    data: bytes
    is_awaited: bool
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    seconds: float


Effect = Connect | Transfer | Pause
Flow = Generator[Effect, bytes, T]


def parse_address(address: str | tuple[str, int]) -> Address:
    """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or a pair."""
    if isinstance(address, tuple):
        return Address(*address)
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise RequestError(f"{address!r} is not an address; write HOST:PORT")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
