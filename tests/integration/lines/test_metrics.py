"""The HTTP listener: Prometheus metrics, health and readiness."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from cordwood.broker.jobs.pipeline_status import PipelineState
from cordwood.broker.metrics import METRICS
from cordwood.cli.app import app
from cordwood.testing import Broker
from support.crash import FailingFiles
from support.http import JsonClient
from support.lines import Wire, ask, high_watermark, http_get, numbered, parse, until

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def scrape(broker: Broker) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the metrics as name → labels → value."""
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
    """Cause at least one of each event that the counters count."""
    ask(broker.control, "REGISTER append AS audit")
    ask(broker.control, "CONFIGURE append segment.entries=10")
    with Wire(broker.ingress) as wire:
        wire.hello("a")
        for start in range(1, 101, 10):
            wire.send(numbered(start, start + 10)).acked(start + 9)
        wire.send(numbered(91, 101)).acked(100)
        wire.send(b"bad line\n")
    until(lambda: high_watermark(broker.control, "dead_letter") == 1, "the dead letter is there")
    with Wire(broker.control) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\n\r\n").rest()
    ask(broker.control, "CUT append")
    ask(broker.control, "PUT old one")
    ask(broker.control, "CONFIGURE old retention.ms=0")
    until(lambda: ask(broker.control, "RECLAIM old") == b"OK 1", "the old segment goes")


def test_every_sample_is_documented_and_parses(broker: Broker):
    """Every exposed metric is in METRICS, and every name in METRICS is on the metrics page."""
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
    """Counters show lines, duplicates, dead letters, cuts by reason and reader lag."""
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
    report = json.loads(ask(broker.control, "METRICS"))
    assert report["cordwood_ingress_records_total"] == 100


def test_health_and_readiness_of_a_healthy_broker(broker: Broker):
    """Health and readiness are JSON; the 404 for an unknown path lists known paths."""
    assert http_get(broker.http, "/healthz") == (200, '{\n "status": "alive"\n}\n')
    status, body = http_get(broker.http, "/readyz")
    report = json.loads(body)
    assert (status, report["ready"], report["disk_full"]) == (200, True, False)
    assert report["offline_partitions"] == {}
    status, body = http_get(broker.http, "/nowhere")
    assert status == 404
    assert "/metrics" in json.loads(body)["message"]


def test_damaged_partition_is_named_by_readyz_and_the_rest_serves(tmp_path: Path):
    """Damage in a sealed segment takes one partition offline; other partitions are served."""
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
    """One keep-alive HTTP connection serves several requests."""
    connection = http.client.HTTPConnection(*parse(broker.http), timeout=30)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert b"alive" in connection.getresponse().read()
    connection.close()
    assert broker.service.server.listeners["http"].accepted == 1


def test_pipelined_http_requests_are_answered_in_order(broker: Broker):
    """Two pipelined HTTP requests get two responses, in order."""
    with Wire(broker.http) as wire:
        one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        last = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        output = wire.send(one + last).rest()
    assert output.count(b"HTTP/1.1 200") == 2
    assert output.index(b"alive") < output.index(b"disk_full")


def test_malformed_http_is_refused_without_a_traceback(broker: Broker):
    """Malformed requests, long headers and large bodies get an error status and a JSON reason."""
    post = b"POST /api/cut HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for noise, status in (
        (b"\0\1\2\3\r\n\r\n", b"400"),
        (b"G\r\n\r\n", b"400"),
        (b"GET  HTTP/1.1\r\n\r\n", b"400"),
        (b"GET //[ HTTP/1.1\r\nhost: localhost\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000, b"431"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 17_000 + b"\r\n\r\n", b"431"),
        (post + b"content-length: 99999999999\r\n\r\n", b"413"),
        (post + b"content-length: 17000000\r\n\r\n" + b"x" * 17_000_000, b"413"),
        (post + b"transfer-encoding: gzip\r\n\r\n", b"501"),
    ):
        with Wire(broker.http) as wire:
            output = wire.send(noise).end().rest()
        assert output.startswith(b"HTTP/1.1 " + status), noise[:60]
        report = json.loads(output.partition(b"\r\n\r\n")[2])
        assert set(report) == {"error", "message"}
    assert http_get(broker.http, "/healthz")[0] == 200


def test_a_failed_sync_shows_in_every_health_report(caplog: pytest.LogCaptureFixture):
    """After a failed fsync the partition is read-only.

    /readyz, the metrics, the log, the API and the CLI all report it.
    """
    files = FailingFiles()
    with Broker(files=files) as broker:
        for topic in ("sick", "well"):
            assert ask(broker.control, f"PUT {topic} one") == b"OK"
        files.refused, files.under = {"sync_data"}, "sick-0"
        assert ask(broker.control, "PUT sick two").startswith(b"ERR PARTITION_OFFLINE ")
        assert ask(broker.control, "PUT sick three").startswith(b"ERR PARTITION_OFFLINE ")
        status, body = http_get(broker.http, "/readyz")
        assert (status, list(json.loads(body)["offline_partitions"])) == (503, ["sick-0"])
        assert "a sync failed" in json.loads(body)["offline_partitions"]["sick-0"]
        found = scrape(broker)
        sick = (("partition", "0"), ("topic", "sick"))
        assert found["cordwood_partition_offline"] == {sick: 1}
        assert len([r for r in caplog.records if "partition.read_only" in r.message]) == 1
        _, body = http_get(broker.http, "/api/topics?name=sick")
        (problem,) = json.loads(body)["topics"][0]["problems"]
        assert (problem["partition"], problem["state"]) == (0, "read-only")
        assert ask(broker.control, "GET sick") == b"OK one"
        assert ask(broker.control, "PUT well two") == b"OK"
        answer = CliRunner().invoke(app, ["check", "--broker", broker.kafka])
        assert answer.exit_code == 5
        assert "sick-0: a sync failed" in answer.output
        answer = CliRunner().invoke(app, ["topic", "list", "--broker", broker.kafka])
        states = {words[0]: words[-1] for words in map(str.split, answer.output.splitlines())}
        assert (states["sick"], states["well"]) == ("read-only", "online")
        answer = CliRunner().invoke(app, ["topic", "describe", "sick", "--broker", broker.kafka])
        assert "sick-0 read_only: a sync failed" in answer.output
        files.refused = set()


def test_a_groups_lag_is_in_the_metrics_the_api_and_check():
    """The metrics, the API and ``check`` show a group's lag, also for unregistered groups."""
    with Broker(durability="os") as broker:
        for n in range(3):
            ask(broker.control, f"PUT jobs {n}")
        cursor = {"action": "reset", "topic": "jobs", "reader": "g", "partition": 0, "offset": 1}
        JsonClient(broker.http).post("/api/readers", cursor)
        found = scrape(broker)
        labels = (("group", "g"), ("topic", "jobs"))
        assert found["cordwood_group_lag_records"] == {labels: 2}
        assert found["cordwood_group_lag_records_max"] == {labels: 2}
        assert found["cordwood_group_lags_left_out"] == {(): 0}
        _, body = http_get(broker.http, "/api/groups?group=g")
        (row,) = json.loads(body)["groups"]
        assert (row["offset"], row["end_offset"], row["lag"]) == (1, 3, 2)
        for lag, exit_code in (("1", 5), ("2", 0)):
            report = CliRunner().invoke(app, ["check", "--broker", broker.kafka, "--lag", lag])
            assert (report.exit_code, "g on jobs" in report.output) == (exit_code, True)


def test_a_pipeline_that_is_down_and_a_job_that_died_are_in_the_metrics():
    """The metrics show whether the pipeline is wanted and up, and the state of each job."""
    with Broker(durability="os") as broker:
        stats = broker.service.broker.pipeline
        stats.is_wanted, stats.state = True, PipelineState.UP
        stats.take_report(
            {"route": {"open": True}, "compact": {"open": False, "failed": 2, "error": "x"}}
        )
        route, compact = (("name", "route"),), (("name", "compact"),)
        found = scrape(broker)
        assert found["cordwood_pipeline_wanted"] == found["cordwood_pipeline_up"] == {(): 1}
        assert found["cordwood_pipeline_job_up"] == {route: 1, compact: 0}
        assert found["cordwood_pipeline_job_failures_total"] == {route: 0, compact: 2}
        report = CliRunner().invoke(app, ["check", "--broker", broker.kafka])
        assert (report.exit_code, "compact: x" in report.output) == (5, True)
        stats.state, stats.detail = PipelineState.WAITING, "ended with code 7"
        found = scrape(broker)
        assert (found["cordwood_pipeline_wanted"], found["cordwood_pipeline_up"]) == (
            {(): 1},
            {(): 0},
        )
        assert found["cordwood_pipeline_job_up"] == {route: 0, compact: 0}
        report = CliRunner().invoke(app, ["check", "--broker", broker.kafka])
        assert (report.exit_code, "pipeline: ended with code 7" in report.output) == (5, True)


def test_a_quarantined_delivery_is_in_the_metrics_and_in_check():
    """The metrics and ``check`` report a quarantined delivery; the broker stays ready."""
    with Broker(durability="os") as broker:
        assert scrape(broker)["cordwood_deliveries_quarantined"] == {(): 0}
        broker.service.broker.deliveries.quarantined["q"] = "a-0 is offline"
        assert scrape(broker)["cordwood_deliveries_quarantined"] == {(): 1}
        assert http_get(broker.http, "/readyz")[0] == 200
        answer = CliRunner().invoke(app, ["check", "--broker", broker.kafka])
        assert (answer.exit_code, "q: a-0 is offline" in answer.output) == (5, True)
