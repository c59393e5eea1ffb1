"""What the HTTP door tells: metrics a scraper parses, health, readiness."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cordwood.broker.metrics import METRICS
from cordwood.testing import Broker
from support.lines import Wire, ask, high_watermark, http_get, numbered, parse, until

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def scrape(broker: Broker) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Metric name → labels → value."""
    status, text = http_get(broker.http, "/metrics")
    assert status == 200
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def base_name(name: str) -> str:
    histogram = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
    return histogram if histogram in METRICS else name


def exercise(broker: Broker) -> None:
    """Something of everything a counter counts."""
    ask(broker.control, "REGISTER append AS audit")
    ask(broker.control, "CONFIGURE append segment.entries=10")
    with Wire(broker.ingress) as wire:
        wire.hello("a")
        for start in range(1, 101, 10):
            wire.send(numbered(start, start + 10)).acked(start + 9)
        wire.send(numbered(91, 101)).acked(100)
        wire.send(b"bad line\n")
    until(lambda: high_watermark(broker.control, "dead_letter") == 1, "the dead letter is there")
    ask(broker.control, "CUT append")
    ask(broker.control, "PUT old one")
    ask(broker.control, "CONFIGURE old retention.ms=0")
    until(lambda: ask(broker.control, "RECLAIM old") == b"OK 1", "the old segment goes")


def test_every_sample_is_documented_and_parses(broker: Broker):
    """A name that is not in METRICS, or not on the page, is a mistake of ours."""
    exercise(broker)
    names = {base_name(name) for name in scrape(broker)}
    assert names <= set(METRICS)
    page = PAGE.read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
    quiet = {"cordwood_partition_offline", "cordwood_lost_records_total"}
    asleep = {name for name in set(METRICS) - names - quiet if _is_of_lines(name)}
    assert asleep == set()


def _is_of_lines(name: str) -> bool:
    words = ("ingress", "appended", "fsync", "writer", "connections", "cuts", "reclaim", "reader")
    return any(word in name for word in words)


def test_counters_tell_what_happened(broker: Broker):
    """Lines, duplicates, dead letters, cuts on the append path and on demand, lag and hold."""
    exercise(broker)
    found = scrape(broker)
    append = (("partition", "0"), ("topic", "append"))
    assert found["cordwood_ingress_records_total"][()] == 100
    assert found["cordwood_ingress_duplicates_total"][()] == 10
    assert found["cordwood_ingress_rejected_total"][()] == 1
    assert found["cordwood_appended_records_total"][()] == 102
    assert found["cordwood_high_watermark"][append] == 100
    counted = [(dict(labels), n) for labels, n in found["cordwood_cuts_total"].items()]
    cuts = {labels["reason"]: n for labels, n in counted if labels["topic"] == "append"}
    assert cuts == {"entries": 9, "demand": 1}
    reader = (("partition", "0"), ("reader", "audit"), ("topic", "append"))
    assert found["cordwood_reader_lag_records"][reader] == 100
    told = json.loads(ask(broker.control, "METRICS"))
    assert told["cordwood_ingress_records_total"] == 100


def test_health_and_readiness_of_a_healthy_broker(broker: Broker):
    """Alive and ready, as JSON; an unknown path says which are known."""
    assert http_get(broker.http, "/healthz") == (200, '{\n "status": "alive"\n}\n')
    status, body = http_get(broker.http, "/readyz")
    told = json.loads(body)
    assert (status, told["ready"], told["disk_full"]) == (200, True, False)
    assert told["offline_partitions"] == {}
    status, body = http_get(broker.http, "/nowhere")
    assert status == 404
    assert "/metrics" in json.loads(body)["message"]


def test_damaged_partition_is_named_by_readyz_and_the_rest_serves(tmp_path: Path):
    """Corruption in a sealed segment takes one partition offline; its neighbours answer."""
    with Broker(tmp_path / "data", kafka="off") as broker:
        for topic in ("sick", "well"):
            ask(broker.control, f"PUT {topic} one")
            ask(broker.control, f"CUT {topic}")
            ask(broker.control, f"PUT {topic} two")
        broker.stop()
        segment = tmp_path / "data" / "sick-0" / f"{0:020}.log"
        damaged = bytearray(segment.read_bytes())
        damaged = damaged[: len(damaged) // 2]
        segment.write_bytes(damaged)
        broker.start()
        status, body = http_get(broker.http, "/readyz")
        assert status == 503
        assert list(json.loads(body)["offline_partitions"]) == ["sick-0"]
        assert ask(broker.control, "GET sick").startswith(b"ERR PARTITION_OFFLINE ")
        assert ask(broker.control, "GET well") == b"OK one"
        offline = scrape(broker)["cordwood_partition_offline"]
        assert offline[(("partition", "0"), ("topic", "sick"))] == 1


def test_one_http_connection_answers_many_requests(broker: Broker):
    """Keep-alive works, and HEAD has no body."""
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=30)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert b"alive" in connection.getresponse().read()
    connection.close()
    assert broker.service.server.doors["http"].accepted == 1


def test_pipelined_http_requests_are_answered_in_order(broker: Broker):
    """Two requests in one write: two answers."""
    with Wire(broker.http) as wire:
        one = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        last = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        said = wire.send(one + last).rest()
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.index(b"alive") < said.index(b"disk_full")


def test_malformed_http_is_refused_without_a_traceback(broker: Broker):
    """Noise, endless headers and a huge body each get a status and an end."""
    for noise in (
        b"\0\1\2\3\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
        b"G\r\n\r\n",
    ):
        with Wire(broker.http) as wire:
            try:
                said = wire.send(noise).end().rest()
            except OSError:
                continue  # the end came while we spoke
            assert said == b"" or said.startswith(b"HTTP/1.1 4"), noise[:40]
    assert http_get(broker.http, "/healthz")[0] == 200
