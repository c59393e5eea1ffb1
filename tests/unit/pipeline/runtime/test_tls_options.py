"""The TLS options of the Spark source and sink, by Kafka's names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import InvalidOption
from cordwood.pipeline.runtime.tls_options import encode_tls, parse_tls
from cordwood.tls import ClientTls

SSL = {"kafka.security.protocol": "SSL"}
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\nAQ==\n-----END CERTIFICATE-----\n"
VALUES = st.sampled_from(["", "/certs/file.pem", PEM])


def test_without_tls_nothing_is_encrypted():
    """PLAINTEXT is the default; leftover ssl options of an explicit PLAINTEXT have no effect."""
    assert parse_tls({}) is None
    leftover = {"kafka.security.protocol": "plaintext", "kafka.ssl.truststore.location": "x"}
    assert parse_tls(leftover) is None


def test_files_and_text_are_taken_by_kafkas_names():
    """A truststore and a keystore are files; certificates and keys may also be text."""
    files = {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.keystore.location": "both.pem"}
    assert parse_tls({**SSL, **files}) == ClientTls("ca.pem", "both.pem")
    text = {
        "kafka.ssl.truststore.certificates": PEM,
        "kafka.ssl.keystore.certificate.chain": PEM,
        "kafka.ssl.keystore.key": "client.key",
        "kafka.ssl.key.password": "secret",
    }
    assert parse_tls({**SSL, **text}) == ClientTls(PEM, PEM, "client.key", "secret")
    assert parse_tls(SSL) == ClientTls()


def test_pem_text_in_one_line_gets_its_line_breaks_back():
    """Kafka's properties hold PEM in one line, with spaces or with backslash and n."""
    for text in (PEM.replace("\n", " "), PEM.replace("\n", "\\n"), PEM.strip()):
        tls = parse_tls({**SSL, "kafka.ssl.truststore.certificates": text})
        assert tls is not None
        assert "".join(tls.ca.split("\n")) == "".join(PEM.split("\n"))
        assert tls.ca.startswith("-----BEGIN CERTIFICATE-----\n")


def test_host_name_is_verified_unless_the_algorithm_is_empty():
    """As in Kafka, an empty endpoint identification algorithm turns the check off."""
    name = "kafka.ssl.endpoint.identification.algorithm"
    for text, verify_host in (("https", True), ("HTTPS", True), ("", False)):
        tls = parse_tls({**SSL, name: text})
        assert tls is not None
        assert tls.verify_host is verify_host


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "SASL_SSL is not supported: SASL comes with"),
        ({"kafka.security.protocol": "TLS"}, "TLS is neither PLAINTEXT nor SSL"),
        ({**SSL, "kafka.ssl.truststore.type": "JKS"}, "JKS is not supported; convert it: `keytool"),
        ({**SSL, "kafka.ssl.keystore.type": "PKCS12"}, "openssl pkcs12"),
        (
            {**SSL, "kafka.ssl.truststore.location": "a", "kafka.ssl.truststore.certificates": "b"},
            "not both",
        ),
        ({**SSL, "kafka.ssl.keystore.key": "a"}, "needs kafka.ssl.keystore.certificate.chain"),
        ({**SSL, "kafka.ssl.endpoint.identification.algorithm": "ldap"}, "neither https nor empty"),
        ({"kafka.ssl.truststore.location": "a"}, "only with kafka.security.protocol=SSL"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(options: dict[str, str], message: str):
    """The sentence names the option and what to do instead."""
    with pytest.raises(InvalidOption, match=message):
        parse_tls(options)


@given(ca=VALUES, cert=VALUES, key=VALUES, password=st.sampled_from(["", "p"]), host=st.booleans())
def test_jobs_pass_on_exactly_how_they_connect(
    ca: str, cert: str, key: str, password: str, host: bool
):
    """Encoding and parsing give the same value back, whatever is set."""
    tls = ClientTls(ca, cert, key if cert else "", password, host)
    assert parse_tls(encode_tls(tls)) == tls
    assert encode_tls(None) == {}
