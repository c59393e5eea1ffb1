"""Which of the broker's other listeners a client uses, decided from the broker's settings.

A user names the Kafka listener; commands and jobs find the others in what the broker says about
itself. A client with TLS uses listeners with TLS, and one without TLS those without. The exception
is a listener without TLS on the loopback interface: what is sent to it does not leave the machine.

Pure: opens no socket.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple

from cordwood.address import Address, parse_address
from cordwood.errors import WrongListener

_OFF: Final = frozenset({"", "off"})
_SCHEMES: Final = {"http://": False, "https://": True}


class ListenerAddress(NamedTuple):
    """Where a listener is reached, and whether with TLS."""

    address: str
    is_tls: bool


def parse_http(text: str, *, is_tls: bool = False, setting: str | None = None) -> ListenerAddress:
    """Parse ``HOST:PORT``, ``http://HOST:PORT`` or ``https://HOST:PORT``.

    ``is_tls`` holds for an address without a scheme. Raises the errors of ``parse_address``.
    """
    for scheme, has_tls in _SCHEMES.items():
        if text.strip().startswith(scheme):
            text, is_tls = text.strip().removeprefix(scheme).rstrip("/"), has_tls
    return ListenerAddress(str(parse_address(text, setting=setting)), is_tls)


def choose_listener(
    name: str, settings: Mapping[str, str], reached: Address, *, uses_tls: bool
) -> ListenerAddress:
    """Return the address of a listener for a client that reached the Kafka listener at ``reached``.

    Raises ``WrongListener`` if the broker has no such listener, or none for this client.
    """
    if advertised := _advertised(name, settings):
        return advertised
    plain, with_tls = (
        _first(settings.get(setting, ""), reached) for setting in (name, f"{name}.tls")
    )
    if uses_tls and with_tls is not None:
        return ListenerAddress(str(with_tls), True)
    if plain is not None and (not uses_tls or is_loopback(plain.host)):
        return ListenerAddress(str(plain), False)
    raise WrongListener(_missing(name, reached, plain, with_tls))


def is_loopback(host: str) -> bool:
    """Whether packets to this host stay on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _advertised(name: str, settings: Mapping[str, str]) -> ListenerAddress | None:
    """Return the address that the broker wants to be known by."""
    text = settings.get(f"advertised.{name}", "")
    if not text:
        return None
    return parse_http(text, is_tls=settings.get(name, "off") in _OFF)


def _first(addresses: str, reached: Address) -> Address | None:
    """Return the first address of a listener; one bound to every address is at ``reached``."""
    if addresses in _OFF:
        return None
    bound = parse_address(addresses.split(",", maxsplit=1)[0])
    is_everywhere = bound.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
    return bound._replace(host=reached.host) if is_everywhere else bound


def _missing(name: str, reached: Address, plain: Address | None, with_tls: Address | None) -> str:
    if with_tls is not None:
        return (
            f"the {name} listener of the broker at {reached} uses TLS; connect to the broker's "
            "Kafka listener with TLS too (--tls-ca FILE or --tls)"
        )
    if plain is not None:
        return (
            f"the {name} listener of the broker at {reached} has no TLS, and this client connects "
            f"with TLS; start the broker with --{name}-tls HOST:PORT"
        )
    return (
        f"the broker at {reached} has no {name} listener; start it with --{name} HOST:PORT, or "
        f"with TLS --{name}-tls HOST:PORT"
    )
