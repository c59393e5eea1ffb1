"""Finds out why a listener did not answer: TLS on one side only, another protocol, a certificate.

Clients call ``diagnose`` after the first exchange of a connection has failed. It opens connections
of its own and looks at how the listener replies to the start of a TLS handshake, to an HTTP request
and to a Kafka request. None of these changes anything at the broker.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from enum import StrEnum
from typing import Final

from cordwood.address import Address
from cordwood.errors import CordwoodError, TlsError, WrongListener

PROBE_S: Final = 0.3  # for one connection of the diagnosis; a user waits for at most three
SILENCE_S: Final = 0.5  # a listener that has not answered by now is looked at
_TLS_REPLIES: Final = (b"\x16\x03", b"\x15\x03")  # a handshake or an alert record
_HTTP: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_LINES_SAY: Final = b"line listener"  # the reply of a line listener to HTTP
_API_VERSIONS: Final = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x2a\x00\x00"  # version 0
_ITS_REPLY: Final = b"\x00\x00\x00\x2a"  # the correlation id, after the length
_HOW_TLS: Final = "(--tls-ca FILE or --tls; in Spark, kafka.security.protocol=SSL)"
_NO_TLS: Final = "(--no-tls; in Spark, kafka.security.protocol=PLAINTEXT)"


class ListenerKind(StrEnum):
    """The protocol of a listener."""

    KAFKA = "Kafka"
    LINES = "line protocol"
    HTTP = "HTTP"


def diagnose(
    error: OSError, address: Address, wanted: ListenerKind, tls: ssl.SSLContext | None
) -> CordwoodError | None:
    """Return the error that explains a failed first exchange; None if it cannot be told."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_certificate_problem(error, address))
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return None
    with suppress(OSError):
        kind = _kind(address, tls)
        if kind is wanted:  # it was only slow, or is back
            return None
        return _tls_problem(address, tls) or _wrong_kind(address, kind, wanted)
    return None


def _tls_problem(address: Address, tls: ssl.SSLContext | None) -> TlsError | None:
    is_tls = _speaks_tls(address)
    if tls is None and is_tls:
        return TlsError(
            f"{address} is a TLS listener, but this client connects without TLS; connect with TLS "
            f"{_HOW_TLS}"
        )
    if tls is not None and not is_tls:
        return TlsError(
            f"{address} is a listener without TLS, but this client connects with TLS; connect to "
            f"a TLS listener, or without TLS {_NO_TLS}"
        )
    if tls is not None and not _stays_open(address, tls):
        return TlsError(
            f"{address} closed the connection after the TLS handshake: it requires a client "
            "certificate of a CA that it trusts (--tls-cert and --tls-key)"
        )
    return None


def _wrong_kind(
    address: Address, kind: ListenerKind | None, wanted: ListenerKind
) -> WrongListener | None:
    if kind is None:
        return None
    return WrongListener(
        f"{address} is the {kind} listener, but the {wanted} listener is needed; use its address"
    )


def _certificate_problem(error: ssl.SSLCertVerificationError, address: Address) -> str:
    """Say what is wrong with the certificate, by OpenSSL's verification codes."""
    expired, not_yet, wrong_name, wrong_ip = 10, 9, 62, 64
    if error.verify_code == expired:
        return f"the certificate of {address} has expired; the broker needs a new one"
    if error.verify_code == not_yet:
        return f"the certificate of {address} is not valid yet; compare the clocks of both machines"
    if error.verify_code in {wrong_name, wrong_ip}:
        return (
            f"the certificate of {address} does not name {address.host}; connect under a name "
            "that it has, or give the broker a certificate with this name"
        )
    return (
        f"the certificate of {address} is not trusted ({error.verify_message}); name the CA that "
        "signed it (--tls-ca FILE; in Spark, kafka.ssl.truststore.location)"
    )


def _speaks_tls(address: Address) -> bool:
    """Whether a listener replies to the start of a TLS handshake with TLS."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=address.host).do_handshake()
    with socket.create_connection(address, PROBE_S) as probe:
        probe.sendall(outgoing.read())
        try:
            return _receive(probe, 2) in _TLS_REPLIES
        except OSError:  # reset, or no reply in time
            return False


def _stays_open(address: Address, tls: ssl.SSLContext) -> bool:
    """Whether the listener still waits for a request after the handshake."""
    with _open(address, tls) as probe:
        probe.settimeout(PROBE_S / 3)
        try:
            return bool(probe.recv(1))
        except TimeoutError:
            return True
        except OSError:
            return False


def _kind(address: Address, tls: ssl.SSLContext | None) -> ListenerKind | None:
    """Return the protocol that a listener replies in; None if it replies in none of ours.

    HTTP comes first: a line listener recognises it, but would keep a Kafka request as a line.
    """
    for test in (_http_or_lines, _kafka):
        with suppress(OSError):
            if kind := test(address, tls):
                return kind
    return None


def _http_or_lines(address: Address, tls: ssl.SSLContext | None) -> ListenerKind | None:
    with _open(address, tls) as probe:
        probe.sendall(_HTTP)
        reply = _receive(probe, 2048)
    if _LINES_SAY in reply:
        return ListenerKind.LINES
    return ListenerKind.HTTP if reply.startswith(b"HTTP/") else None


def _kafka(address: Address, tls: ssl.SSLContext | None) -> ListenerKind | None:
    with _open(address, tls) as probe:
        probe.sendall(_API_VERSIONS)
        return ListenerKind.KAFKA if _receive(probe, 8)[4:] == _ITS_REPLY else None


def _open(address: Address, tls: ssl.SSLContext | None) -> socket.socket:
    opened = socket.create_connection(address, PROBE_S)
    try:
        return tls.wrap_socket(opened, server_hostname=address.host) if tls else opened
    except BaseException:
        opened.close()
        raise


def _receive(probe: socket.socket, bytes_max: int) -> bytes:
    """Return what arrives, up to a limit or the end."""
    arrived = b""
    while len(arrived) < bytes_max and (data := probe.recv(bytes_max - len(arrived))):
        arrived += data
    return arrived
