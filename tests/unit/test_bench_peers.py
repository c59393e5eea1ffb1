"""The comparison with other brokers: ratios, losses, targets and published figures."""

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
    """Return a result of one workload and case."""
    return Result("clients", "64 clients", contestant, level, "u", better, "", list(values))


def test_ratio_says_how_many_times_better_ours_is():
    """A ratio above 1 means that cordwood is ahead, whether more or less is better."""
    rates = by_key([result("cordwood (lines)", 300, 100, 200), result("Redis", 50, 100, 120)])
    peer = rates["clients", "64 clients", "Redis", "synced"]
    assert report.advantage(peer, rates) == 2.0
    times = [result("cordwood (lines)", 4.0, better=LESS), result("Redis", 1.0, better=LESS)]
    assert report.advantage(times[1], by_key(times)) == 0.25


def test_durability_is_equal_or_there_is_no_comparison():
    """Results with different durability are not compared."""
    rows = [result("cordwood (lines)", 1.0), result("NATS JetStream", 9.0, level="cached")]
    assert report.advantage(rows[1], by_key(rows)) is None


def test_kafka_is_compared_at_the_kafka_listener():
    """Kafka is compared with cordwood's Kafka listener, not with the line protocol."""
    ours = [result("cordwood (lines)", 1.0), result("cordwood (Kafka)", 8.0)]
    peer = result("Apache Kafka", 4.0)
    assert report.advantage(peer, by_key([*ours, peer])) == 2.0


def test_an_older_installation_is_compared_at_the_same_listener():
    """An older cordwood is compared at the same listener: lines with lines, Kafka with Kafka."""
    ours = [result("cordwood (lines)", 3.0), result("cordwood (Kafka)", 8.0)]
    older = [result("before (lines)", 2.0), result("before (Kafka)", 4.0)]
    rows = by_key([*ours, *older])
    assert [report.advantage(peer, rows) for peer in older] == [1.5, 2.0]


def test_every_loss_is_listed_the_worst_first():
    """All losses are listed, the largest first. Within five percent is not a loss."""
    rows = [
        result("cordwood (lines)", 50.0), result("cordwood (Kafka)", 99.0),
        result("Redis", 100.0), result("NATS JetStream", 200.0), result("Apache Kafka", 100.0),
    ]  # fmt: skip
    lost = [(peer.contestant, ratio) for ratio, peer, _ in report.losses(by_key(rows))]
    assert lost == [("NATS JetStream", 0.25), ("Redis", 0.5)]


@pytest.mark.parametrize("path", sorted(ROOT.joinpath("bench").glob("*.py")), ids=lambda p: p.stem)
def test_every_benchmark_can_be_imported(path):
    """Every benchmark module can be imported."""
    if path.stem != "__main__":
        importlib.import_module(f"bench.{path.stem}")


def test_target_is_met_missed_or_not_measured():
    """A target is met, missed or reported as not measured."""
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
    """A target of parity is "even" within five percent. Other targets have no tolerance."""
    target = targets.Target("t", ("w", "c", "ours", "l"), ("w", "c", "peer", "l"), low=low)
    assert report.target_line(targets.Verdict(target, value))[-1] == word
    alone = targets.Target("t", ("w", "c", "ours", "l"), None, low=low)
    assert report.target_line(targets.Verdict(alone, value))[-1] != "even"


def test_a_target_between_two_rows_of_the_clients_limit_is_neither_met_nor_missed():
    """If the client limits both results, a target is neither met nor missed.

    One such result alone does not change the verdict.
    """
    target = targets.TARGETS[6]
    assert target.other is not None

    def verdict(*notes):
        rows = zip((target.ours, target.other), notes, (9.0, 10.0), strict=True)
        results = {
            key: Result(*key, "records/s", "more", note, [value]) for key, note, value in rows
        }
        (found,) = [each for each in targets.verdicts(results) if each.target is target]
        return report.target_line(found)[-1]

    assert verdict(CLIENT_BOUND, CLIENT_BOUND) == "the client's limit"
    assert verdict(CLIENT_BOUND, "") == verdict("", CLIENT_BOUND) == "**missed**"


def test_missing_peer_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """An unavailable peer is skipped, and the reason is printed and stored."""

    def missing() -> str:
        raise Missing("it cannot be had here")

    for kind in CONTESTANTS:
        monkeypatch.setattr(kind, "version", missing if kind is Redis else lambda: "1")
    done = plan.Run(1, QUICK)
    assert Redis not in plan.available(done, CONTESTANTS)
    assert "SKIPPED Redis: it cannot be had here" in capsys.readouterr().err
    assert main.document(done)["skipped"] == {"Redis": "it cannot be had here"}
    assert "SKIPPED Redis: it cannot be had here" in main.shown(done)


def test_failed_workload_is_reported_and_not_published():
    """A run with a failed workload is reported and not published."""
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
    """An unknown workload is refused with the known ones, and nothing starts."""
    assert main.main(["liens"]) == 2
    assert capsys.readouterr().out.startswith("no workload liens; there are lines, kafka,")


def test_row_of_our_own_benchmark_takes_its_place_beside_the_rest():
    """A row of our own benchmarks becomes a result. For seconds, less is better."""
    found = main.as_result("spark_scan", Row("scan", "parquet", 3.0, "s", "note"))
    assert (found.key, found.better) == (("spark_scan", "scan", "parquet", ""), LESS)


def test_our_own_benchmarks_run_as_often_as_the_rest(monkeypatch: pytest.MonkeyPatch):
    """Our own benchmarks run once per round, in turn, and each round's value is kept."""
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
    """Acknowledgements are counted correctly for any packet boundaries."""
    parts = [replies[at : at + size] for at in range(0, len(replies), size)]
    assert sum(speech.acked(part) for part in parts) == 3


def test_acks_of_lines_are_cumulative_however_they_are_cut():
    """Acknowledgements of lines are cumulative, even if one is split between packets."""
    speech = Lines()
    assert [speech.acked(part) for part in (b"ACK 2\nAC", b"K 5", b"\n")] == [2, 0, 3]


def test_every_message_has_the_same_hundred_bytes():
    """Every message is 100 bytes long with its newline, whatever its number is."""
    assert {len(message(number)) + 1 for number in (0, 1, 10**9)} == {100}


def test_client_fills_a_broker_with_what_it_counts():
    """The measuring client sends every message and waits for its acknowledgement."""
    with Broker(durability="os", pipeline="off") as broker:
        ingress = opcodes.address(broker.ingress)
        assert client.fill(ingress, "line", 4_000) == 4_000
        assert client.one_in_flight(ingress, "line", 0.01)


def test_published_pictures_are_drawn_from_the_published_runs():
    """Published pictures match the published results."""
    stale = [path.name for path, text in publish.pictures() if path.read_text() != text]
    assert stale == []


def test_server_that_does_not_start_is_a_failure_and_not_the_end(monkeypatch: pytest.MonkeyPatch):
    """A server that does not start is recorded as a failure and does not end the run."""

    def refuse(_self: Redis) -> None:
        raise OSError("no port for you")

    monkeypatch.setattr(Redis, "launch", refuse)
    done = plan.Run(1, QUICK)
    plan.visited(done, Redis, Level.CACHED, ["lines"], asking=None)
    assert done.failed == ["lines on Redis, cached"]
