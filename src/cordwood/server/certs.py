"""Creates lab certificates: one CA, one server, one client. In production use your own PKI.

Only the ``certs`` command imports this module, so the broker itself needs no ``cryptography``.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from cordwood.errors import ConfigError

FILES = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")


def write_lab_certificates(
    directory: Path, hosts: Sequence[str], days: int, *, replace: bool
) -> list[Path]:
    """Write the six files; raise ``ConfigError`` if one exists and ``replace`` is false."""
    paths = [directory / name for name in FILES]
    there = [path for path in paths if path.exists()]
    if there and not replace:
        raise ConfigError(f"{there[0]} already exists; use --force to replace all six files")
    directory.mkdir(parents=True, exist_ok=True)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    ca_key, ca = _issue("cordwood lab CA", until, None, (), is_ca=True)
    server_key, server = _issue("cordwood server", until, (ca_key, ca), hosts)
    client_key, client = _issue("cordwood client", until, (ca_key, ca), ())
    pairs = ((ca, ca_key), (server, server_key), (client, client_key))
    for (certificate, key), base in zip(pairs, ("ca", "server", "client"), strict=True):
        _write(directory / f"{base}.pem", _pem(certificate), 0o644)
        _write(directory / f"{base}.key", _key_pem(key), 0o600)
    return paths


def _issue(
    name: str,
    until: dt.datetime,
    issuer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None,
    hosts: Sequence[str],
    *,
    is_ca: bool = False,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return a new key and its certificate, signed by ``issuer`` or self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_key, parent = (issuer[0], issuer[1].subject) if issuer else (key, subject)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(parent)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    if is_ca:
        builder = builder.add_extension(_ca_usage(), critical=True)
    if hosts:
        names = [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return key, builder.sign(signing_key, hashes.SHA256())


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # an existing file may have had a wider mode
        file.write(data)
