"""``cordwood serve`` as a process: start, refused start and stop."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cordwood.log.files.disk import Files, OpenFile
from cordwood.testing import Broker
from support.lines import Served, Wire, ask, numbered, read_topic, until, wires


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cordwood", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_second_start_on_a_directory_is_refused_in_one_sentence(tmp_path: Path):
    """A second broker on a data directory exits with 4 and a one-line error.

    The first broker continues to serve.
    """
    with Served(tmp_path / "data") as served:
        flags = ("--kafka=off", "--ingress=127.0.0.1:0", "--control=off", "--http=off")
        second = serve("--data", str(tmp_path / "data"), *flags)
        assert second.returncode == 4
        assert second.stdout == ""
        (sentence,) = second.stderr.strip().splitlines()
        assert sentence.startswith("cordwood: ")
        assert str(tmp_path / "data") in sentence
        assert ask(served.control, "GET_ACK nowhere").startswith(b"ERR UNKNOWN_TOPIC")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--durabilty", "os"], ["--durability"]),
        (["--durability", "never"], ["durability", "fsync, os"]),
        (["--ingress", "nonsense"], ["ingress", "HOST:PORT"]),
        (["--ingress", "127.0.0.1:99999"], ["ingress", "HOST:PORT"]),
        (["--ingress-buffer", "0"], ["ingress.buffer", "below 1"]),
        (["--config", "missing.toml"], ["no config file at missing.toml"]),
        (["--ingress-tls", "127.0.0.1:0"], ["tls.cert", "cordwood certs init"]),
        (["--log-level", "loud"], ["log level"]),
    ],
)
def test_wrong_flag_stops_with_a_sentence_that_helps(
    tmp_path: Path, flags: list[str], words: list[str]
):
    """A wrong flag exits with 2; the error names the setting and its valid values."""
    quiet = ("--kafka=off", "--control=off", "--http=off", "--ingress=off")
    output = serve("--data", str(tmp_path / "data"), *quiet, *flags)
    assert output.returncode == 2, output.stderr
    assert "Traceback" not in output.stderr
    for word in words:
        assert word in output.stderr
    assert not list(tmp_path.glob("data/*.lock")) or not output.stdout


def test_port_that_is_taken_is_named(tmp_path: Path):
    """A port in use exits with 2; the error names the listener and the address."""
    with Served(tmp_path / "one") as served:
        output = serve(
            "--data", str(tmp_path / "two"), "--kafka=off", "--control=off", "--http=off",
            "--ingress", served.ingress,
        )  # fmt: skip
    assert output.returncode == 2
    assert f"cannot listen on {served.ingress} for ingress" in output.stderr


def test_ready_line_comes_within_seconds_and_names_the_listeners(tmp_path: Path):
    """The ready line on stdout lists the listeners' addresses; examples go to stderr."""
    with Served(tmp_path / "data") as served:
        assert set(served.addresses) == {"ingress", "control", "http"}
        assert "echo GET_ACK | nc" in served.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_drains_what_was_acknowledged_and_closes_cleanly(tmp_path: Path, number: int):
    """SIGTERM and SIGINT under load keep every acknowledged line and exit with 0.

    Peers see a clean end of the connection, not a reset.
    """
    served = Served(tmp_path / "data")
    with Wire(served.ingress) as producer, Wire(served.control) as listener:
        producer.hello("steady")
        producer.send(numbered(1, 1001)).acked(1000)
        listener.send(b"SUBSCRIBE append FROM 1000\n")
        assert listener.line().endswith(b"|p1000")
        producer.send(numbered(1001, 3001))
        served.process.send_signal(number)
        acked = [line for line in producer.rest().split(b"\n") if line.startswith(b"ACK ")]
        listener.rest()
    assert served.end() == 0
    last = int(acked[-1][4:]) if acked else 1000
    with Served(tmp_path / "data") as again:
        stored = [line.n for line in read_topic(again.control)]
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= last
    assert "Traceback" not in (tmp_path / "data.log").read_text()


class SlowFiles(Files):
    """A disk with a slow fsync, so that some write is always in progress."""

    def sync_data(self, file: OpenFile) -> None:
        threading.Event().wait(0.05)
        super().sync_data(file)


def test_stop_does_not_wait_for_a_sender_that_never_stops(caplog: pytest.LogCaptureFixture):
    """A stop ends reading first, so endless senders do not prevent connections from draining."""
    settings = {"files": SlowFiles(), "shutdown_timeout_ms": 5_000, "connections_max": 100}
    with Broker(kafka="off", **settings) as broker, wires(broker.ingress, 8) as producers:
        pushing = [threading.Thread(target=push_for_ever, args=(wire,)) for wire in producers]
        for number, wire in enumerate(producers):
            wire.hello(f"endless-{number}")
        for thread in pushing:
            thread.start()
        for wire in producers:
            assert wire.line().startswith(b"ACK ")
        broker.stop()
        for thread in pushing:
            thread.join(30)
            assert not thread.is_alive()
    assert not [r for r in caplog.records if "connection.undrained" in r.getMessage()]


def push_for_ever(wire: Wire) -> None:
    n = 1
    with contextlib.suppress(OSError):
        while True:
            wire.send(numbered(n, n + 500))
            n += 500


def test_client_killed_mid_line_harms_nobody(tmp_path: Path):
    """A client killed mid-line leaves its complete lines and one dead letter.

    Other connections are not affected.
    """
    program = (
        "import socket,sys,os,signal\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "s.sendall(b'test.k|17|1|whole\\ntest.k|17|2|ha')\n"
        "print('sent',flush=True)\n"
        "sys.stdin.read()\n"
    )
    with Served(tmp_path / "data") as served, Wire(served.ingress) as neighbour:
        neighbour.hello("neighbour")
        host, port = served.ingress.rsplit(":", 1)
        with subprocess.Popen(
            [sys.executable, "-c", program, host, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout
            child.stdout.readline()
            until(lambda: ask(served.control, "GET_ACK") == b"ACK 1", "the whole line is stored")
            child.kill()
        until(lambda: ask(served.control, "GET_ACK dead_letter") == b"ACK 1", "the half one too")
        neighbour.send(numbered(1, 11)).acked(10)
        assert "Traceback" not in served.log()
