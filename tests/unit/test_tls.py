"""Which certificates a client trusts and shows, and the errors for files that it cannot use."""

from __future__ import annotations

import os
import pickle
import ssl
from pathlib import Path

import pytest

from cordwood.errors import ConfigError
from cordwood.server.certs import write_lab_certificates
from cordwood.tls import ClientTls, context_of, first_certificate


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lab certificates of one CA."""
    directory = tmp_path_factory.mktemp("certs")
    write_lab_certificates(directory, ["localhost"], 1, replace=False)
    return directory


def test_host_and_certificate_are_verified_by_default():
    """A context verifies both, with the system's CAs if none is named, and needs TLS 1.2."""
    context = ClientTls().context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_only_the_named_authorities_are_trusted(certs: Path):
    """With a CA given, the CAs of the system are not trusted."""
    context = ClientTls(ca=str(certs / "ca.pem")).context()
    assert [each["subject"][0][0][1] for each in context.get_ca_certs()] == ["cordwood lab CA"]


def test_paths_and_text_make_the_same_context(certs: Path):
    """What is inlined survives pickling and loads without the files."""
    files = [str(certs / name) for name in ("ca.pem", "client.pem", "client.key")]
    inlined = pickle.loads(pickle.dumps(ClientTls(*files).inlined()))
    assert inlined.key.startswith("-----BEGIN ")
    assert inlined.context().get_ca_certs() == ClientTls(*files).context().get_ca_certs()


def test_a_certificate_and_its_key_may_be_in_one_file(certs: Path, tmp_path: Path):
    """A combined file needs no second one."""
    both = tmp_path / "both.pem"
    both.write_bytes((certs / "client.key").read_bytes() + (certs / "client.pem").read_bytes())
    assert ClientTls(cert=str(both)).context()


def test_context_is_made_again_only_when_a_file_changes(certs: Path, tmp_path: Path):
    """Renewed certificates are used without a restart; unchanged files are not read again."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes((certs / "ca.pem").read_bytes())
    tls = ClientTls(ca=str(ca))
    before = tls.context()
    assert tls.context() is before
    os.utime(ca, ns=(1, 1))
    assert tls.context() is not before


def test_secrets_are_not_in_the_text_form():
    """Key and password appear in no log line and no traceback."""
    shown = repr(ClientTls("ca", "cert", "the key", "the password"))
    assert "the key" not in shown
    assert "the password" not in shown


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ca": "missing.pem"}, "cannot read the CA certificates in .*missing.pem: No such file"),
        ({"ca": "client.key"}, "client.key has no CA certificate in PEM format"),
        ({"cert": "missing.pem"}, "cannot read the client certificate in .*missing.pem"),
        ({"cert": "client.pem", "key": "ca.key"}, "the key does not belong to the certificate"),
        ({"cert": "client.pem"}, "both must be there, in PEM format"),
        ({"key": "client.key"}, "a client key needs its certificate"),
    ],
)
def test_an_unusable_file_is_named(certs: Path, files: dict[str, str], message: str):
    """A file that is missing, of another kind or of another pair is one sentence."""
    tls = ClientTls(**{name: str(certs / file) for name, file in files.items()})
    with pytest.raises(ConfigError, match=message):
        tls.context()


def test_an_encrypted_key_needs_its_password_and_never_asks_for_it(certs: Path, tmp_path: Path):
    """OpenSSL must not prompt on the terminal of a user or a service."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((certs / "client.key").read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    cert = str(certs / "client.pem")
    assert ClientTls(cert=cert, key=str(locked), key_password="secret").context()
    with pytest.raises(ConfigError, match="the key has a password"):
        ClientTls(cert=cert, key=str(locked)).context()
    with pytest.raises(ConfigError, match="the password of the key is wrong"):
        ClientTls(cert=cert, key=str(locked), key_password="wrong").context()


def test_first_certificate_leaves_out_the_chain(certs: Path, tmp_path: Path):
    """Of a file with a chain, only the server's own certificate is taken."""
    server, ca = ((certs / name).read_text() for name in ("server.pem", "ca.pem"))
    chain = tmp_path / "chain.pem"
    chain.write_text(server + ca)
    assert first_certificate(str(chain)) == server


def test_a_context_of_the_caller_is_used_as_it_is():
    """``tls`` may be a context, the three paths, or nothing."""
    own = ssl.create_default_context()
    assert context_of(own) is own
    assert context_of(None) is None
    assert isinstance(context_of(ClientTls()), ssl.SSLContext)
