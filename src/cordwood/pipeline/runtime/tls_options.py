"""The TLS options of source and sink, with the names of Spark's Kafka connector.

Certificates and keys are PEM: text, which reaches executors with the query, or paths that exist on
every machine. ``parse_tls`` reads the options, ``encode_tls`` writes them for our own jobs.

Pure: no Spark, no files, no sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cordwood.errors import InvalidOption
from cordwood.tls import ClientTls

PROTOCOL: Final = "kafka.security.protocol"
CA: Final = "kafka.ssl.truststore.certificates"
CA_FILE: Final = "kafka.ssl.truststore.location"
CHAIN: Final = "kafka.ssl.keystore.certificate.chain"
KEY: Final = "kafka.ssl.keystore.key"
KEY_FILE: Final = "kafka.ssl.keystore.location"
KEY_PASSWORD: Final = "kafka.ssl.key.password"  # noqa: S105 - the name of an option
VERIFY_HOST: Final = "kafka.ssl.endpoint.identification.algorithm"
_TYPES: Final = ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type")

TLS_OPTIONS: Final = {  # documented name → what it does
    PROTOCOL: "`PLAINTEXT` (default) or `SSL`, for the Kafka listener and the HTTP listener.",
    CA_FILE: "`SSL`: a PEM file of the CAs to trust. Default: the system's CAs.",
    CA: "`SSL`: the same as PEM text, for executors that do not have the file.",
    KEY_FILE: "`SSL`: a PEM file with the client's certificate and key, for mutual TLS.",
    CHAIN: "`SSL`: the client's certificate as PEM text or the path of a PEM file …",
    KEY: "… and its key, as PEM text or the path of a PEM file.",
    KEY_PASSWORD: "`SSL`: the password of an encrypted key.",
    _TYPES[0]: "Only `PEM`.",
    _TYPES[1]: "Only `PEM`.",
    VERIFY_HOST: (
        "`SSL`: `https` (default): the broker's certificate must name its host; empty: it need not."
    ),
}
_SASL: Final = "SASL comes with access control; authenticate with a client certificate until then"
_NO_PASSWORD: Final = f"PEM files have no password; for an encrypted key, set {KEY_PASSWORD}"
TLS_REFUSED: Final = {
    "kafka.sasl.mechanism": _SASL,
    "kafka.sasl.jaas.config": _SASL,
    "kafka.ssl.truststore.password": _NO_PASSWORD,
    "kafka.ssl.keystore.password": _NO_PASSWORD,
}
_CONVERT: Final = (
    "convert it: `keytool -importkeystore -srckeystore STORE -destkeystore store.p12 "
    "-deststoretype PKCS12` for JKS, then `openssl pkcs12 -in store.p12 -out store.pem -nodes`"
)
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE_CHARACTERS: Final = 64


def parse_tls(values: Mapping[str, str]) -> ClientTls | None:
    """Return how to connect; None without TLS. Raises ``InvalidOption``."""
    if not _is_ssl(values):
        return None
    for name in _TYPES:
        if values.get(name, "PEM").upper() != "PEM":
            raise InvalidOption(f"option {name}: {values[name]} is not supported; {_CONVERT}")
    algorithm = values.get(VERIFY_HOST, "https").strip().lower()
    if algorithm not in {"https", ""}:
        raise InvalidOption(f"option {VERIFY_HOST}: {algorithm!r} is neither https nor empty")
    ca = _one_of(values, CA, CA_FILE)
    cert = _one_of(values, CHAIN, KEY_FILE)
    key = _pem(values.get(KEY, ""))
    if key and CHAIN not in values:
        raise InvalidOption(f"option {KEY} needs {CHAIN}, the certificate of the key")
    return ClientTls(ca, cert, key, values.get(KEY_PASSWORD, ""), algorithm == "https")


def encode_tls(tls: ClientTls | None) -> dict[str, str]:
    """Return the options that ``parse_tls`` reads as the same value."""
    if tls is None:
        return {}
    given = {CA: tls.ca, CHAIN: tls.cert, KEY: tls.key, KEY_PASSWORD: tls.key_password}
    options = {name: value for name, value in given.items() if value}
    return {PROTOCOL: "SSL", **options, **({} if tls.verify_host else {VERIFY_HOST: ""})}


def _is_ssl(values: Mapping[str, str]) -> bool:
    protocol = values.get(PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol.startswith("SASL"):
        raise InvalidOption(f"option {PROTOCOL}: {protocol} is not supported: {_SASL}")
    if protocol not in {"PLAINTEXT", "SSL"}:
        raise InvalidOption(f"option {PROTOCOL}: {protocol} is neither PLAINTEXT nor SSL")
    given = [name for name in values if name.startswith("kafka.ssl.")]
    if given and PROTOCOL not in values:
        raise InvalidOption(f"option {given[0]} has an effect only with {PROTOCOL}=SSL; set both")
    return protocol == "SSL"


def _one_of(values: Mapping[str, str], text: str, path: str) -> str:
    if text in values and path in values:
        raise InvalidOption(f"set either {text} or {path}, not both")
    return _pem(values.get(text, values.get(path, "")))


def _pem(value: str) -> str:
    """Return PEM text with line breaks, also if it was written in one line as properties are."""
    blocks = _BLOCK.findall(value.replace("\\n", "\n"))
    return "".join(_block(*block) for block in blocks) if blocks else value.strip()


def _block(label: str, body: str) -> str:
    lines = body.strip().splitlines()
    if len(lines) <= 1:  # an encrypted key of the old format has header lines, never in one line
        joined = "".join(body.split())
        step = _LINE_CHARACTERS
        lines = [joined[at : at + step] for at in range(0, len(joined), step)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----\n"))
