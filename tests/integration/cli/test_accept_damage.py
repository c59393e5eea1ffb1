"""``cordwood segment accept-damage`` makes a broker with a damaged segment ready again."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from integration.cli.test_accept_loss import cordwood, readyz
from support.lines import Served, ask


def metrics(served: Served) -> str:
    with urllib.request.urlopen(f"http://{served.http}/metrics") as answer:
        return answer.read().decode()


def test_damage_is_a_problem_until_it_is_accepted(tmp_path: Path):
    """Accepted damage no longer blocks readiness, also after a restart, but reads still fail."""
    data = tmp_path / "data"
    with Served(data, kafka="127.0.0.1:0") as served:
        assert cordwood(served, "produce", "t", stdin="a\nb\n").returncode == 0
        assert ask(served.control, "CUT t").startswith(b"OK")
        log = data / "t-0" / f"{0:020}.log"
        damaged = bytearray(log.read_bytes())
        damaged[-1] ^= 1
        log.write_bytes(damaged)
        assert cordwood(served, "segment", "scrub").returncode == 5
        assert readyz(served)[0] == 503
        wrong = cordwood(served, "segment", "accept-damage", "t", "0", "1", "--yes")
        assert (wrong.returncode, "no known damage" in wrong.stderr) == (3, True)
        accepted = cordwood(served, "segment", "accept-damage", "t", "0", "0", "--yes")
        assert (accepted.returncode, "accepted: offsets" in accepted.stderr) == (0, True)
        expect_accepted(served)
    with Served(data, kafka="127.0.0.1:0") as served:
        expect_accepted(served)


def expect_accepted(served: Served) -> None:
    status, stats = readyz(served)
    assert (status, stats["damaged_partitions"], list(stats["damage_accepted"])) == (
        200, {}, ["t-0"],
    )  # fmt: skip
    assert cordwood(served, "check").returncode == 0
    assert cordwood(served, "segment", "scrub").returncode == 0
    assert "t-0 damaged, accepted: offsets" in cordwood(served, "topic", "describe", "t").stderr
    assert 'cordwood_accepted_damaged_ranges{partition="0",topic="t"} 1.0' in metrics(served)
    assert 'cordwood_damaged_ranges{partition="0",topic="t"}' not in metrics(served)
    assert cordwood(served, "consume", "t", "-e").returncode != 0
