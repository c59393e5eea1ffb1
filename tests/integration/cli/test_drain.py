"""``reader drain`` and what ``topic describe`` and ``check`` say of kept segments."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cordwood.client.blocking import Client
from cordwood.testing import Broker


@pytest.fixture
def cordwood():
    """Runs ``cordwood WORDS`` against a broker with two sealed segments on the ingress topic."""
    with Broker(durability="os", ingress_topic="lines") as broker:
        with Client(broker.control) as client:
            for word in (b"one", b"two"):
                client.put("lines", word)
                client.cut("lines")

        def run(*words):
            return subprocess.run(
                [sys.executable, "-m", "cordwood", *words],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, "CORDWOOD_BROKER": broker.kafka},
                timeout=60,
            )

        yield run


def test_a_drain_says_what_it_releases_and_a_dry_run_does_nothing(cordwood):
    """A row per partition goes to stdout and one sentence to stderr; -J is for programs."""
    words = ("reader", "drain", "me", "--topic", "lines", "--register")
    dry = cordwood(*words, "--dry-run", "-J")
    (row,) = json.loads(dry.stdout)
    assert (row["topic"], row["start"], row["end"], row["released_segments"]) == ("lines", 0, 2, 2)
    released = f"2 records for reader me, releasing 2 segments ({row['released_bytes']} bytes)"
    assert dry.stderr == f"would acknowledge {released}\n"
    assert json.loads(cordwood("reader", "list", "-J").stdout) == []
    done = cordwood(*words, "-J")
    assert (done.returncode, json.loads(done.stdout)) == (0, [row])
    assert done.stderr == f"acknowledged {released}\n"
    (reader,) = json.loads(cordwood("reader", "list", "-J").stdout)
    assert (reader["reader"], reader["topic"], reader["lag"]) == ("me", "lines", 0)


def test_kept_segments_are_named_with_what_keeps_them(cordwood):
    """Without a reader, describe and check say so; ``--held`` makes too much of it a problem."""
    kept = "kept: no reader is registered; `cordwood reader register lines READER`"
    assert kept in cordwood("topic", "describe", "lines").stderr
    checked = cordwood("check")
    assert (checked.returncode, kept in checked.stdout) == (0, True)
    assert cordwood("check", "--held", "1").returncode == 5
    cordwood("reader", "register", "lines", "slow")
    assert "kept for reader slow;" in cordwood("topic", "describe", "lines").stderr
