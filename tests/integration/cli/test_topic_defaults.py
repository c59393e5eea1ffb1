"""Broker-wide defaults of topic settings, as an operator gives and sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LISTENERS = ("kafka", "ingress", "control", "http")


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cordwood", *words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=60,
    )


@contextmanager
def serving(data: Path, *words: str, **environ: str) -> Iterator[str]:
    """Run ``cordwood serve`` and yield its Kafka address."""
    listeners = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    with subprocess.Popen(
        [sys.executable, "-m", "cordwood", "serve", "--data", str(data), *listeners, *words],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            ready = next(line for line in child.stdout if line.startswith("READY "))
            yield json.loads(ready.removeprefix("READY "))["kafka"]
        finally:
            child.terminate()


def test_a_default_reaches_topics_and_is_shown_with_its_source(tmp_path):
    """Variable, file and flag set defaults; new and existing topics follow them at the next start.

    ``CORDWOOD_SEGMENT_ENTRIES=1000`` is what ``WALRUS_MAX_SEGMENT_ENTRIES=1000`` is to Walrus.
    """
    file = tmp_path / "c.toml"
    file.write_text("log.retention.hours = 1\n")
    data, words = tmp_path / "data", ("--config", str(file), "--log-segment-bytes", "5000")
    with serving(data, *words, CORDWOOD_SEGMENT_ENTRIES="1000") as kafka:
        command("topic", "create", "t", "-c", "segment.bytes=5000", "-b", kafka)
        command("produce", "auto", "-b", kafka)
        described = command("topic", "describe", "t", "-b", kafka).stdout
        assert [line.split() for line in described.splitlines()[-3:]] == [
            ["segment.bytes", "5000", "topic"],
            ["segment.entries", "1000", "broker"],
            ["retention.ms", "3600000", "broker"],
        ]
    with serving(data, CORDWOOD_SEGMENT_ENTRIES="7") as kafka:
        described = command("topic", "describe", "t", "-b", kafka).stdout
        assert [line.split() for line in described.splitlines()[-2:]] == [
            ["segment.bytes", "5000", "topic"],
            ["segment.entries", "7", "broker"],
        ]


@pytest.mark.parametrize(
    ("words", "environ", "complaint"),
    [
        (("--segment-entries", "0"), {}, "segment.entries: 0 is below 1 (flag --segment-entries)"),
        (
            (),
            {"CORDWOOD_LOG_SEGMENT_BYTES": "big"},
            (
                "log.segment.bytes: 'big' is not a size; write bytes, or 64KiB, 512MiB, 10GB "
                "(variable CORDWOOD_LOG_SEGMENT_BYTES)"
            ),
        ),
        (
            ("--min-compaction-lag-ms", "9"),
            {"CORDWOOD_MAX_COMPACTION_LAG_MS": "5"},
            (
                "min.compaction.lag.ms (9) is above max.compaction.lag.ms (5) "
                "(flag --min-compaction-lag-ms)"
            ),
        ),
        (
            (),
            {"CORDWOOD_SEGMENT_ENTRYS": "5"},
            (
                "unknown environment variable CORDWOOD_SEGMENT_ENTRYS; did you mean "
                "CORDWOOD_SEGMENT_ENTRIES?"
            ),
        ),
    ],
)
def test_a_bad_default_stops_the_start_with_one_sentence(tmp_path, words, environ, complaint):
    """Exit code 2, and nothing is created."""
    done = command("serve", "--data", str(tmp_path / "data"), *words, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cordwood: {complaint}\n")
    assert not (tmp_path / "data").exists()


def test_a_default_that_the_dead_letter_topic_cannot_follow_stops_the_start(tmp_path):
    """The sentence names setting, topic and source; exit code 2."""
    data = tmp_path / "data"
    with serving(data) as kafka:
        command("topic", "create", "dead_letter", "-b", kafka)
    done = command(
        *("serve", "--data", str(data), "--kafka", "127.0.0.1:0", "--ingress", "off"),
        *("--control", "off", "--http", "off"),
        CORDWOOD_LOG_CLEANUP_POLICY="compact",
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cordwood: cleanup.policy: compact cannot be the default of all topics")
    assert last.endswith("(variable CORDWOOD_LOG_CLEANUP_POLICY)")


def test_config_show_lists_the_defaults_of_topics(tmp_path):
    """``config show`` shows each default with its source, by our name for the setting."""
    file = tmp_path / "c.toml"
    file.write_text("log.segment.bytes = 5000\n")
    done = command(
        "config", "show", "--config", str(file), "--format", "json", CORDWOOD_RETENTION_MS="9"
    )
    shown = {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}
    assert shown["segment.bytes"] == ("5000", "file")
    assert shown["retention.ms"] == ("9", "environment")
    assert shown["segment.entries"] == ("1000000", "default")
