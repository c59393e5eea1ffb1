"""The comparison with peers: fair ratios, honest losses, and figures that nobody types."""

from __future__ import annotations

import importlib

import pytest
from bench import opcodes, publish
from bench.peers import client, main, plan, report, targets
from bench.peers.contestants import CONTESTANTS, Level, Redis
from bench.peers.measure import QUICK
from bench.peers.provide import ROOT, Missing
from bench.peers.results import CLIENT_BOUND, LESS, MORE, Result, by_key
from bench.peers.speech import Lines, Nats, message
from bench.peers.speech import Redis as RedisSpeech
from bench.rows import Row

from cordwood.testing import Broker


def result(contestant: str, *values: float, level: str = "synced", better: str = MORE) -> Result:
    """Of one workload and case."""
    return Result("clients", "64 clients", contestant, level, "u", better, "", list(values))


def test_ratio_says_how_many_times_better_ours_is():
    """Whether more or less is better: above 1 we are ahead."""
    rates = by_key([result("cordwood (lines)", 300, 100, 200), result("Redis", 50, 100, 120)])
    peer = rates["clients", "64 clients", "Redis", "synced"]
    assert report.advantage(peer, rates) == 2.0
    times = [result("cordwood (lines)", 4.0, better=LESS), result("Redis", 1.0, better=LESS)]
    assert report.advantage(times[1], by_key(times)) == 0.25


def test_durability_is_equal_or_there_is_no_comparison():
    """A peer that does not sync is not compared with ours that does."""
    rows = [result("cordwood (lines)", 1.0), result("NATS JetStream", 9.0, level="cached")]
    assert report.advantage(rows[1], by_key(rows)) is None


def test_kafka_is_compared_at_the_kafka_listener():
    """Not with lines, which are another protocol."""
    ours = [result("cordwood (lines)", 1.0), result("cordwood (Kafka)", 8.0)]
    peer = result("Apache Kafka", 4.0)
    assert report.advantage(peer, by_key([*ours, peer])) == 2.0


def test_every_loss_is_listed_the_worst_first():
    """Nobody chooses what to admit; what is even within five in a hundred is no loss."""
    rows = [
        result("cordwood (lines)", 50.0), result("cordwood (Kafka)", 99.0),
        result("Redis", 100.0), result("NATS JetStream", 200.0), result("Apache Kafka", 100.0),
    ]  # fmt: skip
    lost = [(peer.contestant, ratio) for ratio, peer, _ in report.losses(by_key(rows))]
    assert lost == [("NATS JetStream", 0.25), ("Redis", 0.5)]


@pytest.mark.parametrize("path", sorted(ROOT.joinpath("bench").glob("*.py")), ids=lambda p: p.stem)
def test_every_benchmark_can_be_imported(path):
    """What only runs in a quiet hour must not have been broken since the last one."""
    if path.stem != "__main__":
        importlib.import_module(f"bench.{path.stem}")


def test_target_is_met_missed_or_not_measured():
    """A target that was not looked at is not said to be met."""
    target = targets.Target("t", ("w", "c", "ours", "l"), ("w", "c", "peer", "l"), low=2)
    assert targets.Verdict(target, 2.0).is_met
    assert not targets.Verdict(target, 1.9).is_met
    assert report.target_line(targets.Verdict(target, None))[-1] == "not measured in this run"
    assert report.target_line(targets.Verdict(target, 1.9))[-1] == "**missed**"


@pytest.mark.parametrize(
    ("low", "value", "word"),
    [
        (1, 0.94, "**missed**"),
        (1, 0.96, "even"),
        (1, 1.04, "even"),
        (1, 1.06, "met"),
        (2, 1.99, "**missed**"),
    ],
)
def test_who_should_not_be_behind_is_even_when_about_the_same(low, value, word):
    """On either side, as the next run may say the contrary; no other bound is softened."""
    target = targets.Target("t", ("w", "c", "ours", "l"), ("w", "c", "peer", "l"), low=low)
    assert report.target_line(targets.Verdict(target, value))[-1] == word
    alone = targets.Target("t", ("w", "c", "ours", "l"), None, low=low)
    assert report.target_line(targets.Verdict(alone, value))[-1] != "even"


def test_a_target_between_two_rows_of_the_clients_limit_is_neither_met_nor_missed():
    """Their ratio is about 1 whatever the servers do; one such row alone excuses nothing."""
    target = targets.TARGETS[6]
    assert target.other is not None

    def said(*notes):
        rows = zip((target.ours, target.other), notes, (9.0, 10.0), strict=True)
        results = {
            key: Result(*key, "records/s", "more", note, [value]) for key, note, value in rows
        }
        (verdict,) = [each for each in targets.verdicts(results) if each.target is target]
        return report.target_line(verdict)[-1]

    assert said(CLIENT_BOUND, CLIENT_BOUND) == "the client's limit"
    assert said(CLIENT_BOUND, "") == said("", CLIENT_BOUND) == "**missed**"


def test_missing_peer_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Loudly: in what is printed, and in what is kept."""

    def missing() -> str:
        raise Missing("it cannot be had here")

    for kind in CONTESTANTS:
        monkeypatch.setattr(kind, "version", missing if kind is Redis else lambda: "1")
    done = plan.Run(1, QUICK)
    assert Redis not in plan.available(done)
    assert "SKIPPED Redis: it cannot be had here" in capsys.readouterr().err
    assert main.document(done)["skipped"] == {"Redis": "it cannot be had here"}
    assert "SKIPPED Redis: it cannot be had here" in main.shown(done)


def test_failed_workload_is_reported_and_not_published():
    """A run with a hole in it makes no page."""
    done = plan.Run(1, QUICK)

    def broken():
        raise ValueError("broken on purpose")
        yield

    plan.gather(done, "lines", "Redis", "synced", broken())
    assert done.failed == ["lines on Redis, synced"]
    assert publish.publish({}, main.document(done)) == [
        "NOT PUBLISHED: lines on Redis, synced failed"
    ]


def test_unknown_workload_is_answered_with_the_known(capsys: pytest.CaptureFixture[str]):
    """Nothing is started on a mistyped name."""
    assert main.main(["liens"]) == 2
    assert capsys.readouterr().out.startswith("no workload liens; there are lines, kafka,")


def test_row_of_our_own_benchmark_takes_its_place_beside_the_rest():
    """A module with run() -> rows plugs in; seconds are better when less."""
    found = main.as_result("spark_scan", Row("scan", "parquet", 3.0, "s", "note"))
    assert (found.key, found.better) == (("spark_scan", "scan", "parquet", ""), LESS)


def test_our_own_benchmarks_run_as_often_as_the_rest(monkeypatch: pytest.MonkeyPatch):
    """In turns, so that a neighbour's load hits all of them; every round's value is kept."""
    asked: list[str] = []

    def measure(name: str) -> tuple[list[Row], float]:
        asked.append(name)
        return [Row("scan", "cordwood", float(len(asked)), "s")], 1.0

    monkeypatch.setattr(main.ours, "measure", measure)
    done = plan.Run(1, QUICK._replace(rounds=2))
    main.beside(done, ["route", "spark_scan"])
    assert asked == ["route", "spark_scan"] * 2
    assert done.results["route", "scan", "cordwood", ""].values == [1.0, 3.0]
    assert done.results["spark_scan", "scan", "cordwood", ""].values == [2.0, 4.0]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("speech", "replies"),
    [
        (RedisSpeech(), b"$15\r\n1700000000000-0\r\n" * 3),
        (Nats(), b'MSG _INBOX.bench.0 1 26\r\n{"stream":"BENCH","seq":1}\r\n' * 3),
    ],
)
def test_acks_do_not_depend_on_packet_boundaries(speech, replies: bytes, size: int):
    """Three acknowledgements, however the replies are cut."""
    parts = [replies[at : at + size] for at in range(0, len(replies), size)]
    assert sum(speech.acked(part) for part in parts) == 3


def test_acks_of_lines_are_cumulative_however_they_are_cut():
    """ACK 5 tells of five messages, also when it arrives in two parts."""
    speech = Lines()
    assert [speech.acked(part) for part in (b"ACK 2\nAC", b"K 5", b"\n")] == [2, 0, 3]


def test_every_message_has_the_same_hundred_bytes():
    """With its newline, whatever its number; so no contestant is given less to carry."""
    assert {len(message(number)) + 1 for number in (0, 1, 10**9)} == {100}


def test_client_fills_a_broker_with_what_it_counts():
    """The loop that measures does send, and hears an ack for, every message."""
    with Broker(durability="os", pipeline="off") as broker:
        ingress = opcodes.address(broker.ingress)
        assert client.fill(ingress, "line", 4_000) == 4_000
        assert client.one_in_flight(ingress, "line", 0.01)


def test_published_pictures_are_drawn_from_the_published_runs():
    """`python -m bench peers --publish` writes both; nobody draws by hand."""
    stale = [path.name for path, text in publish.pictures() if path.read_text() != text]
    assert stale == []


def test_server_that_does_not_start_is_a_failure_and_not_the_end(monkeypatch: pytest.MonkeyPatch):
    """The others are still visited; the run says what is missing from it."""

    def refuse(_self: Redis) -> None:
        raise OSError("no port for you")

    monkeypatch.setattr(Redis, "launch", refuse)
    done = plan.Run(1, QUICK)
    plan.visited(done, Redis, Level.CACHED, ["lines"], asking=None)
    assert done.failed == ["lines on Redis, cached"]
