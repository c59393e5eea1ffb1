"""How a client connects with TLS: which certificates it trusts, and which one it presents.

``ClientTls`` holds paths or PEM text, so that it can be sent to other machines; the context of the
``ssl`` module is made on the machine that connects, and again when a file has changed, so renewed
certificates need no restart. Opens no socket.
"""

from __future__ import annotations

import functools
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cordwood.errors import ConfigError

_PEM: Final = "-----BEGIN "
_CERTIFICATE_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client trusts and presents; each certificate or key is a path or PEM text.

    ``ca``: certificates of the authorities to trust; empty = those of the system. ``cert`` and
    ``key``: for a broker that requires client certificates; a ``cert`` may contain its key.
    ``verify_host``: whether the broker's certificate must name the host that is connected to.
    """

    ca: str = ""
    cert: str = ""
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    verify_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context for connections; raise ``ConfigError`` if a file is unusable."""
        return _context(self, tuple(map(_stamp, (self.ca, self.cert, self.key))))

    def inlined(self) -> ClientTls:
        """Return the same with PEM text instead of paths, for machines without these files."""
        return ClientTls(
            _text("CA certificates", self.ca),
            _text("client certificate", self.cert),
            _text("client key", self.key),
            self.key_password,
            self.verify_host,
        )


def context_of(tls: ClientTls | ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Return the context to connect with; None for a connection without TLS."""
    return tls.context() if isinstance(tls, ClientTls) else tls


def first_certificate(path: str) -> str:
    """Return the first certificate of a file as PEM text: the server's own, without its chain."""
    text = _text("certificate", path)
    end = text.find(_CERTIFICATE_END)
    return text[: end + len(_CERTIFICATE_END)] + "\n" if end >= 0 else text


def _is_text(value: str) -> bool:
    return _PEM in value


def _stamp(value: str) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None for text and for a missing file."""
    if not value or _is_text(value):
        return None
    try:
        status = Path(value).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=16)
def _context(tls: ClientTls, stamps: object) -> ssl.SSLContext:
    del stamps  # part of the key of the cache
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust what is named, root or not
    context.check_hostname = tls.verify_host
    if tls.ca:
        _load_authorities(context, tls.ca)
    else:
        context.load_default_certs()
    if tls.cert:
        _load_certificate(context, tls)
    elif tls.key:
        raise ConfigError("a client key needs its certificate; give both, or one file with both")
    return context


def _load_authorities(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(cadata=_text("CA certificates", ca))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{_name(ca)} has no CA certificate in PEM format") from None


def _load_certificate(context: ssl.SSLContext, tls: ClientTls) -> None:
    try:
        # The password may be empty but is never None: OpenSSL would ask for it on the terminal.
        with _file("client certificate", tls.cert) as cert, _file("client key", tls.key) as key:
            context.load_cert_chain(cert, key or None, tls.key_password)
    except ssl.SSLError as error:
        where = " and ".join(_name(each) for each in (tls.cert, tls.key) if each)
        raise ConfigError(
            f"cannot use the client certificate and key in {where}: {_reason(error, tls)}"
        ) from None


def _reason(error: ssl.SSLError, tls: ClientTls) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if "ENCRYPTED" in _text("client key", tls.key or tls.cert):
        is_wrong = bool(tls.key_password)
        wrong = "the password of the key is wrong" if is_wrong else "the key has a password"
        return f"{wrong}; `openssl pkey -in KEY -out NEW` writes it without one"
    return "both must be there, in PEM format"


@contextmanager
def _file(what: str, value: str) -> Iterator[str]:
    """Yield a path of the value: OpenSSL reads certificates and keys only from files."""
    if not _is_text(value):
        if value:
            _text(what, value)  # an error that names the file
        yield value
        return
    with tempfile.NamedTemporaryFile("w", prefix="cordwood-", suffix=".pem") as file:  # mode 0600
        file.write(value)
        file.flush()
        yield file.name


def _text(what: str, value: str) -> str:
    """Return the PEM text of a path or a text."""
    if not value or _is_text(value):
        return value
    try:
        return Path(value).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read the {what} in {value}: {error.strerror}") from None


def _name(value: str) -> str:
    return "the given PEM text" if _is_text(value) else value
