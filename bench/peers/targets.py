"""Our performance targets, as ratios of two results of one run or as bounds for one number."""

from __future__ import annotations

from typing import NamedTuple

from bench.peers.results import CLIENT_BOUND, Key, Results
from bench.run import human

LINES, KAFKA = "cordwood (lines)", "cordwood (Kafka)"
SYNCED, CACHED = "synced", "cached"
TIMES = "\N{MULTIPLICATION SIGN}"
EVEN = 0.05  # closer than this to a peer is neither ahead nor behind: rounds differ by more


class Target(NamedTuple):
    """The target: ``ours`` divided by ``other``, or ours alone, is within a bound."""

    what: str
    ours: Key
    other: Key | None
    low: float | None = None
    high: float | None = None


class Verdict(NamedTuple):
    """The result of a target; the value is ``None`` if this run did not measure it."""

    target: Target
    value: float | None
    is_client_bound: bool = False  # on both sides: the ratio is about 1, whatever the servers do

    @property
    def is_met(self) -> bool:
        assert self.value is not None
        low, high = self.target.low, self.target.high
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    @property
    def is_even(self) -> bool:
        """Return whether ours equals the peer's within EVEN; another run may reverse the order."""
        assert self.value is not None
        bound = self.target.low or self.target.high
        return self.target.other is not None and bound == 1 and abs(self.value - 1) <= EVEN

    @property
    def bound(self) -> str:
        sign, bound = (
            ("≥", self.target.low) if self.target.low is not None else ("≤", self.target.high)
        )
        return f"{sign} {human(bound)}{TIMES if self.target.other else ''}"


def verdicts(results: Results) -> list[Verdict]:
    """Return every target in the order of this file."""
    return [_verdict(target, results) for target in TARGETS]


def _verdict(target: Target, results: Results) -> Verdict:
    ours = results.get(target.ours)
    other = results.get(target.other) if target.other else None
    if ours is None or (target.other and other is None):
        return Verdict(target, None)
    if other is None:
        return Verdict(target, ours.median)
    is_bound = CLIENT_BOUND in ours.note and CLIENT_BOUND in other.note
    return Verdict(target, ours.median / other.median, is_bound)


_ACKED = ("lines", "acknowledged, 20,000 under way")
_STREAMED = ("lines", "streamed, no acknowledgement")


def _kafka(what: str, case: str) -> list[Target]:
    return [
        Target(
            f"{what}, {level}, against Apache Kafka",
            ("kafka", case, KAFKA, level),
            ("kafka", case, "Apache Kafka", level),
            low=1.0,
        )
        for level in (SYNCED, CACHED)
    ]


TARGETS: tuple[Target, ...] = (
    Target(
        "line ingest, synced, against NATS JetStream (not synced)",
        (*_ACKED, LINES, SYNCED), (*_ACKED, "NATS JetStream", CACHED), low=10,
    ),
    Target(
        "line ingest, synced, against Redis everysec",
        (*_ACKED, LINES, SYNCED), (*_ACKED, "Redis", CACHED), low=5,
    ),
    Target(
        "line ingest, synced, against socat + gawk (not synced)",
        (*_STREAMED, LINES, SYNCED), (*_STREAMED, "socat + gawk", CACHED), low=2,
    ),
    Target(
        "line ingest, cached, against socat + gawk",
        (*_STREAMED, LINES, CACHED), (*_STREAMED, "socat + gawk", CACHED), low=5,
    ),
    Target("line ingest, synced, messages/s", (*_ACKED, LINES, SYNCED), None, low=1_500_000),
    Target(
        "64 clients, synced, against Redis always",
        ("clients", "64 clients", LINES, SYNCED), ("clients", "64 clients", "Redis", SYNCED), low=1,
    ),
    *_kafka("librdkafka produce 100 B", "produce 100 B, acks=all, none"),
    *_kafka("librdkafka produce 1 KiB", "produce 1024 B, acks=all, none"),
    *_kafka("prepared fetch 100 B, hot", "prepared fetch, 1 MiB a request"),
    *_kafka("librdkafka (kcat) fetch 100 B, hot", "fetch 100 B, hot, by kcat"),
    *_kafka("librdkafka fetch 1 KiB, hot", "fetch 1024 B, hot"),
    *(
        Target(
            f"ack p99 with librdkafka, {level}, against Apache Kafka",
            ("latency", "librdkafka, p99", KAFKA, level),
            ("latency", "librdkafka, p99", "Apache Kafka", level),
            high=1.5,
        )
        for level in (SYNCED, CACHED)
    ),
    *(
        Target(
            f"first byte by {listener}, 1,000,000 messages against 10,000",
            ("replay", "first byte, 1,000,000 messages", label, CACHED),
            ("replay", "first byte, 10,000 messages", label, CACHED),
            high=1.5,
        )
        for listener, label in (("SUBSCRIBE FROM_START", LINES), ("librdkafka", KAFKA))
    ),
    Target(
        "start after kill -9, 1,000,000 messages against 10,000",
        ("replay", "ready after kill -9, 1,000,000 messages", LINES, CACHED),
        ("replay", "ready after kill -9, 10,000 messages", LINES, CACHED),
        high=1.5,
    ),
    Target(
        "ready, s",
        ("idle", "from start to the first answer", "cordwood", CACHED), None, high=1,
    ),
    Target("idle memory, MiB", ("idle", "idle: memory", "cordwood", CACHED), None, high=120),
    Target("idle CPU, % of a core", ("idle", "idle: CPU", "cordwood", CACHED), None, high=1),
    Target(
        "Spark scan, full rows, against Parquet",
        ("spark_scan", "spark scan, full rows", "cordwood", ""),
        ("spark_scan", "spark scan, full rows", "parquet", ""), low=1,
    ),
    Target(
        "Spark scan, key + offset, against Parquet",
        ("spark_scan", "spark scan, key + offset", "cordwood", ""),
        ("spark_scan", "spark scan, key + offset", "parquet", ""), low=0.8,
    ),
    *(
        Target(
            f"ack p99 beside a Spark {scan} against none",
            ("scan_beside_producers", f"ack beside a Spark scan, {scan}", "p99", ""),
            ("scan_beside_producers", "ack beside a Spark scan, no scan", "p99", ""), high=2,
        )
        for scan in ("scan", "scan, polite")
    ),
    Target(
        "compaction, records/s",
        ("compaction_kafka", "compaction, same log of 10 M", "cordwood", ""), None, low=1_000_000,
    ),
    Target(
        "compaction against Apache Kafka's cleaner, same log",
        ("compaction_kafka", "compaction, same log of 10 M", "cordwood", ""),
        ("compaction_kafka", "compaction, same log of 10 M", "Apache Kafka 3.9.1", ""), low=2,
    ),
    Target(
        "router, records/s",
        ("route", "route, ingest included", "cordwood", ""), None, low=500_000,
    ),
    Target(
        "append → route p50, ms",
        ("route", "append → route, p50", "cordwood", ""), None, high=300,
    ),
)  # fmt: skip
