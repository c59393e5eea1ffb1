"""Every command on a broker whose listeners all use TLS, and what goes wrong with certificates."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.cli import main
from cordwood.testing import Broker
from support.command_lines import ASKING, ON_SPARK
from support.tls import LISTENERS, make_certificates, tls_broker

Run = Callable[..., tuple[int, str, str]]

WORKING = [  # without Spark, in an order in which all succeed
    "topic create t",
    "topic list",
    "topic describe t",
    "topic alter t -c retention.ms=1000000",
    "produce t input",
    "consume t -e",
    "tail t",
    "cat t",
    "consume t -e -g g",
    "group list",
    "group describe g",
    "group seek g --to start",
    "group delete g --yes",
    "reader register t r",
    "reader list",
    "reader reset t r 0",
    "reader remove t r --yes",
    "route set a t",
    "route list",
    "route remove a",
    "pipeline status",
    "pipeline deliveries",
    "segment scrub t",
    "check",
    "dlq ls",
    "dlq sample",
    "dlq replays",
    "archive ls",
    "bench produce -n 2000 -c 1",
    "bench consume -n 2000 -c 1",
    "bench latency -n 3",
    "bench lines -n 2000 -c 1 --yes",
    "topic delete t --yes",
]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the broker's CA, and in ``foreign`` and ``expired`` those of others."""
    directory = make_certificates(tmp_path_factory.mktemp("certs"))
    make_certificates(directory / "foreign")
    make_certificates(directory / "expired", days=0)
    return directory


@pytest.fixture(scope="module")
def mutual(certs: Path) -> Iterator[Broker]:
    """A broker with TLS only that requires client certificates."""
    with tls_broker(certs) as running:
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[Broker]:
    """A broker without TLS."""
    with Broker() as running:
        yield running


@pytest.fixture
def cordwood(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Runs a command line through ``main``; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input").write_text("a record\n")

    def run(line: str, address: str, **variables: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cordwood", *shlex.split(line)])
        monkeypatch.setenv("CORDWOOD_BROKER", address)
        if line.startswith("bench"):  # it measures a broker of its own unless it is told one
            sys.argv += ["-b", address]
        for name, value in variables.items():
            monkeypatch.setenv(f"CORDWOOD_{name}", str(value))
        with pytest.raises(SystemExit) as ended:
            main()
        output = capfd.readouterr()
        return ended.value.code, output.out, output.err  # type: ignore[return-value]

    return run


def ours(certs: Path) -> dict[str, object]:
    """The variables of a client that the broker accepts."""
    client = {"TLS_CLIENT_CERT": certs / "client.pem", "TLS_CLIENT_KEY": certs / "client.key"}
    return {"TLS_CA": certs / "ca.pem", **client}


def test_every_command_works_over_mutual_tls(cordwood: Run, mutual: Broker, certs: Path):
    """With a CA and a client certificate, all commands do what they do without TLS."""
    for line in WORKING:
        code, _, said = cordwood(line, mutual.address("kafka_tls"), **ours(certs))
        assert (line, code) == (line, 0), said


def test_no_command_is_left_out():
    """Every command that contacts a broker is tried above, or starts Spark."""
    rare = (
        "topic accept-loss",
        "reader drain",
        "pipeline discard",
        "segment accept-damage",
        "segment compress",
        "archive verify",
    )
    names = {" ".join(word for word in line.split()[:2] if word.isalpha()) for line in WORKING}
    for line in ASKING:
        is_tried = any(line.startswith(name) for name in names)
        assert is_tried or line in ON_SPARK or line.startswith(rare), line


def test_options_say_the_same_as_the_variables(cordwood: Run, mutual: Broker, certs: Path):
    """``--tls-ca``, ``--tls-cert`` and ``--tls-key`` are enough."""
    options = "--tls-ca {0}/ca.pem --tls-cert {0}/client.pem --tls-key {0}/client.key"
    line = f"topic list {options.format(certs)}"
    assert cordwood(line, mutual.address("kafka_tls"))[0] == 0


@pytest.mark.parametrize("line", ASKING)
def test_a_command_without_tls_is_told_that_the_listener_uses_it(
    cordwood: Run, mutual: Broker, line: str
):
    """A TLS-only broker locks nobody out without a word: one sentence says which option to give."""
    code, _, said = cordwood(line, mutual.address("kafka_tls"))
    assert code == 6
    assert "is a TLS listener, but this client connects without TLS" in said
    assert "--tls-ca FILE" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("line", ON_SPARK)
def test_a_job_with_a_wrong_ca_ends_before_spark_starts(
    cordwood: Run, mutual: Broker, certs: Path, line: str
):
    """Commands that start Spark take the same options, and check them first."""
    wrong = {"TLS_CA": certs / "foreign/ca.pem"}
    code, _, said = cordwood(line, mutual.address("kafka_tls"), **wrong)
    assert (code, "is not trusted" in said) == (6, True), said


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"TLS_CA": "foreign/ca.pem"}, "is not trusted (self-signed certificate"),
        ({"TLS": "1"}, "is not trusted (self-signed certificate"),
        ({"TLS_CA": "ca.pem"}, "it requires a client certificate of a CA that it trusts"),
        (
            {
                "TLS_CA": "ca.pem",
                "TLS_CLIENT_CERT": "foreign/client.pem",
                "TLS_CLIENT_KEY": "foreign/client.key",
            },
            "it requires a client certificate of a CA that it trusts",
        ),
    ],
)
def test_a_certificate_that_does_not_fit_is_one_sentence(
    cordwood: Run, mutual: Broker, certs: Path, variables: dict[str, str], sentence: str
):
    """A wrong CA, and a client certificate that is missing or of a foreign CA."""
    given = {name: certs / v if v != "1" else v for name, v in variables.items()}
    code, _, said = cordwood("topic list", mutual.address("kafka_tls"), **given)
    assert (code, said.count("\n")) == (6, 1)
    assert sentence in said


def test_host_name_is_verified(cordwood: Run, mutual: Broker, certs: Path):
    """A certificate for another name is refused, and the sentence names the host."""
    port = mutual.address("kafka_tls").rpartition(":")[2]
    code, _, said = cordwood("topic list", f"localhost:{port}", **ours(certs))
    assert code == 6
    assert f"the certificate of localhost:{port} does not name localhost" in said


def test_an_expired_certificate_is_said(cordwood: Run, certs: Path):
    """The sentence tells an expired certificate from an untrusted one."""
    expired = certs / "expired"
    with tls_broker(expired, mutual=False) as broker:
        code, _, said = cordwood(
            "topic list", broker.address("kafka_tls"), TLS_CA=expired / "server.pem"
        )
    assert code == 6
    assert "has expired; the broker needs a new one" in said


@pytest.mark.parametrize("listener", ["ingress", "control", "http"])
def test_the_port_of_another_listener_is_named(
    cordwood: Run, mutual: Broker, plain: Broker, certs: Path, listener: str
):
    """With TLS and without, a wrong port is told by the protocol that its listener speaks."""
    kind = "HTTP" if listener == "http" else "line protocol"
    tries = [
        cordwood("topic list", plain.address(listener)),
        cordwood("topic list", mutual.address(f"{listener}_tls"), **ours(certs)),
    ]
    for code, _, said in tries:
        assert code == 6
        assert f"is the {kind} listener, but the Kafka listener is needed" in said


@pytest.mark.parametrize("listener", LISTENERS)
def test_tls_to_a_plain_port_is_told_so(cordwood: Run, plain: Broker, certs: Path, listener: str):
    """One sentence says that the listener has no TLS, whichever it is."""
    code, _, said = cordwood("topic list", plain.address(listener), **ours(certs))
    assert code == 6
    assert "is a listener without TLS, but this client connects with TLS" in said


def test_no_tls_overrides_the_environment(cordwood: Run, plain: Broker, certs: Path):
    """``--no-tls`` connects to one broker without TLS where the shell is set up for another."""
    assert cordwood("topic list --no-tls", plain.kafka, **ours(certs))[0] == 0


def test_a_client_certificate_alone_is_refused_or_ignored(
    cordwood: Run, plain: Broker, certs: Path
):
    """On the command line it would have no effect; in the environment it may be the broker's."""
    code, _, said = cordwood(f"topic list --tls-cert {certs}/client.pem", plain.kafka)
    assert code == 2
    assert "add --tls-ca FILE, or --tls" in said
    assert cordwood("topic list", plain.kafka, TLS_CLIENT_CERT=certs / "client.pem")[0] == 0


def test_kafka_with_tls_and_http_on_loopback_go_together(cordwood: Run, certs: Path):
    """The broker's plain HTTP listener on loopback serves a command that uses TLS for Kafka."""
    settings = {"tls_cert": str(certs / "server.pem"), "tls_key": str(certs / "server.key")}
    with Broker(kafka="off", kafka_tls="127.0.0.1:0", **settings) as broker:
        assert cordwood("check", broker.address("kafka_tls"), TLS_CA=certs / "ca.pem")[0] == 0


def test_advertised_http_address_is_where_commands_go(cordwood: Run, certs: Path):
    """With advertised.http, commands do not use the address that the listener is bound to."""
    with tls_broker(certs, mutual=False) as other:
        there = other.address("http_tls")
        with tls_broker(certs, mutual=False, advertised_http=there) as broker:
            kafka = broker.address("kafka_tls")
            assert cordwood("route set a t", kafka, TLS_CA=certs / "ca.pem")[0] == 0
        found = cordwood("route list", other.address("kafka_tls"), TLS_CA=certs / "ca.pem")[1]
    assert "a" in found.split()
