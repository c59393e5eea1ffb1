"""Brokers whose listeners all use TLS, and certificates for them."""

from __future__ import annotations

from pathlib import Path

from cordwood.client import ClientTls
from cordwood.server.certs import write_lab_certificates
from cordwood.testing import Broker

LISTENERS = ("kafka", "ingress", "control", "http")
HOST = "127.0.0.1"  # the only name in the certificates: localhost is a wrong one


def make_certificates(directory: Path, *, days: int = 1) -> Path:
    """Write certificates of a CA of their own."""
    write_lab_certificates(directory, [HOST], days, replace=False)
    return directory


def tls_settings(certs: Path, *, mutual: bool) -> dict[str, str]:
    """The settings of a broker without any listener for clients without TLS."""
    return {
        **dict.fromkeys(LISTENERS, "off"),
        **{f"{listener}_tls": f"{HOST}:0" for listener in LISTENERS},
        "tls_cert": str(certs / "server.pem"),
        "tls_key": str(certs / "server.key"),
        "tls_client_ca": str(certs / "ca.pem") if mutual else "",
    }


def tls_broker(certs: Path, *, mutual: bool = True, **settings: object) -> Broker:
    """A broker with TLS on every listener; ``mutual``: clients need a certificate."""
    return Broker(**tls_settings(certs, mutual=mutual), **settings)


def client_tls(certs: Path, *, of: Path | None = None, shows: bool = True) -> ClientTls:
    """How a client connects: it trusts ``certs``, and shows a certificate of ``of``."""
    own = of or certs
    files = (str(own / "client.pem"), str(own / "client.key")) if shows else ("", "")
    return ClientTls(str(certs / "ca.pem"), *files)
