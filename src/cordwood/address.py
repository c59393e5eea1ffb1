"""The address of a listener: how it is written, parsed and printed. Resolves no names."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.errors import ConfigError, RequestError

PORTS = 65536


class Address(NamedTuple):
    """The address of a listener; ``str`` writes it as ``parse_address`` reads it."""

    host: str
    port: int

    def __str__(self) -> str:
        """Format it as ``HOST:PORT``, or ``[HOST]:PORT`` for IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(address: str | tuple[str, int], *, setting: str | None = None) -> Address:
    """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or a pair.

    Raises ``RequestError`` if it is malformed, or ``ConfigError`` if it is the value of a setting.
    """
    if isinstance(address, tuple):
        return Address(*address)
    host, colon, port = address.strip().rpartition(":")
    if colon and host and port.isascii() and port.isdigit() and int(port) < PORTS:
        return Address(host.removeprefix("[").removesuffix("]"), int(port))
    if setting is None:
        raise RequestError(f"{address!r} is not an address; write HOST:PORT")
    raise ConfigError(f"{setting} is {address!r}; it takes HOST:PORT, such as 127.0.0.1:0, or off")
