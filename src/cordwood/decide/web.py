"""Decides whether to answer an HTTP request at all: protection against foreign web pages.

A browser sends requests wherever a web page asks it to, loopback included. Two things reveal such a
request: the ``Host`` is not one of our names (a page can resolve its own name to our address, DNS
rebinding), or the browser reports another site (``Origin``, ``Sec-Fetch-Site``). Programs that are
not browsers send neither. Pure: no sockets, no DNS lookups.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from cordwood.errors import CordwoodError, ForeignHost, ForeignOrigin

OWN_SITES: Final = frozenset({"same-origin", "none"})  # none: the user typed the address
_HOST = re.compile(r"[a-z0-9._:-]+")
READS: Final = frozenset({"GET", "HEAD"})


class AllowedHosts:
    """The names this broker answers to; IP addresses and localhost are always allowed."""

    def __init__(self, names: Iterable[str]) -> None:
        """``*`` allows any name, ``*.example.org`` any name below it."""
        lower = {name.strip().lower().rstrip(".") for name in names}
        self._names = {"localhost", *filter(None, lower)}
        self._suffixes = tuple(name[1:] for name in self._names if name.startswith("*."))

    def allow(self, authority: str) -> bool:
        """Whether a ``Host`` (``name``, ``name:port``, ``[::1]:port``) is allowed."""
        host = host_of(authority)
        if host is None:
            return False
        return (
            "*" in self._names
            or host in self._names
            or host.endswith(self._suffixes)
            or _is_address(host)
        )


def check_access(
    method: str, path: str, headers: Mapping[str, str], hosts: AllowedHosts
) -> CordwoodError | None:
    """Why to refuse the request, or None; ``headers`` has lower-case names.

    A client without ``Host`` uses HTTP/1.0 and is not a browser. A page of another site may only
    link to our pages, which sends no ``Origin``; it may not use the API.
    """
    host = headers.get("host")
    if host is not None and not hosts.allow(host):
        return ForeignHost(
            f"this broker does not accept the host name {host[:100]!a}; if it is one of its "
            "names, add it to http.allowed.hosts"
        )
    origin = headers.get("origin")
    if origin is not None and not _is_same(origin, host):
        return ForeignOrigin(f"a page of {origin[:100]!a} may not send requests to this broker")
    if method in READS and not path.startswith("/api/"):
        return None
    site = headers.get("sec-fetch-site")
    if site is not None and site.lower() not in OWN_SITES:
        return ForeignOrigin("web pages of another site may not use this broker's API")
    return None


def host_of(authority: str) -> str | None:
    """The host in ``host[:port]``, in lower case; None if it is invalid."""
    try:
        split = urlsplit(f"//{authority}")
        if split.netloc != authority or "@" in authority:
            return None
        split.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        return None
    host = (split.hostname or "").rstrip(".")
    return host if _HOST.fullmatch(host) else None


def _is_same(origin: str, host: str | None) -> bool:
    """Whether the origin is the host the request was sent to; ``null`` never is."""
    scheme, _, authority = origin.partition("://")
    return bool(authority) and scheme in {"http", "https"} and authority == host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
