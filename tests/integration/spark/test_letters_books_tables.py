"""Replay, audit and table jobs on Spark with a real broker."""

from __future__ import annotations

import io
import json
from unittest.mock import ANY

import confluent_kafka
import pytest

from cordwood.batch.header import parse_headers
from cordwood.batch.records import decode_committed, encode_batch
from cordwood.cli.output.row_printer import PrintMode, print_rows
from cordwood.client.kafka import KafkaClient
from cordwood.decide import deadletters, provenance
from cordwood.errors import ConfigError, InvalidOption
from cordwood.model import Header, Record, TopicPartition
from cordwood.pipeline.audit import audit_topics, balance_books
from cordwood.pipeline.replay import Replay, preview, run_replay
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.runtime.tasks import WATCH_S
from cordwood.pipeline.sql import TopicViews, stream_rows
from cordwood.pipeline.table import TableRequest, build_table
from cordwood.protocol.api.deliveries import ListReplays
from cordwood.protocol.api.readers import ListReaders
from cordwood.testing import Broker

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
WAIT_S = 20


class Bench:
    """A broker with helpers to write, read and run jobs."""

    def __init__(self, broker: Broker, spark) -> None:
        self.broker = broker
        self.spark = spark
        self.where = BrokerAddress(broker.kafka)
        self.api = BrokerApi(self.where)

    def put(self, topic, records, partition=0, partitions=1, **config):
        config = {"retention.ms": "-1"} | {n.replace("_", "."): v for n, v in config.items()}
        rows = [
            Record(i, START_MS + i * 1000, key, value, tuple(headers))
            for i, (key, value, headers) in enumerate(records)
        ]
        with KafkaClient(self.broker.kafka) as client:
            if topic not in {each.name for each in client.topics()}:
                client.create_topic(topic, partitions, config)
            if rows:
                client.produce(TopicPartition(topic, partition), encode_batch(rows))

    def read(self, topic, partition=0):
        tp = TopicPartition(topic, partition)
        found, offset = [], 0
        with KafkaClient(self.broker.kafka) as client:
            end = client.offset(tp, -1)
            while offset < end:
                data = bytes(client.fetch({tp: offset}, max_wait_ms=0)[tp].records or b"")
                found += [r for r in decode_committed(data) if r.offset >= offset]
                offset = parse_headers(data)[-1].end_offset
        return found

    def replay(self, **options):
        asked = ("rate", "batch_records", "watch", "task_records_min", "cores")
        run = {name: options.pop(name) for name in asked if name in options}
        return run_replay(self.spark, self.api, Replay(**options), **run)

    def table(self, out, progress=None, watch_s=WATCH_S, **options):
        request = TableRequest(topic="users", out=out, **options)
        built = build_table(self.spark, self.api, request, progress=progress, watch_s=watch_s)
        rows = self.spark.read.parquet(str(out / "current")).collect()
        return built, {bytes(row["key"]): bytes(row["value"]) for row in rows}

    def sql(self, text, mode=PrintMode.NDJSON):
        frame = TopicViews(self.spark, self.api).query(text)
        out = io.StringIO()
        print_rows(frame.columns, stream_rows(frame), mode, out)
        return out.getvalue()


@pytest.fixture
def bench(spark):
    with Broker(durability="os") as broker:
        bench = Bench(broker, spark)
        yield bench
        bench.api.close()


def a_letter(number, reason="no_key"):
    why = deadletters.headers_for_record(reason, "because", "append", 0, number)
    return b"odd key %d" % number, b"letter %d" % number, (Header("mine", b"1"), *why)


def test_letters_are_chosen_and_rewritten_by_sql(bench):
    """Replay selects and rewrites by SQL, drops dead-letter headers and sends each record once."""
    bench.put("dead_letter", [a_letter(i, "no_key" if i % 2 else "loop") for i in range(10)])
    before = bench.read("dead_letter")
    options = {
        "topic": "dead_letter",
        "to": "fixed",
        "where": "reason = 'loop' and source_offset >= 4",
        "set_key": "concat('test.', source_offset)",
        "set_value": "upper(value_text)",
    }
    outcome = bench.replay(**options)
    assert (outcome.scanned, outcome.replayed) == (10, 3)
    fixed = bench.read("fixed")
    assert [(r.key, r.value) for r in fixed] == [
        (b"test.%d" % i, b"LETTER %d" % i) for i in (4, 6, 8)
    ]
    assert fixed[0].headers == (
        Header("mine", b"1"),
        Header("replay.id", outcome.id.encode()),
    )
    assert bench.read("dead_letter") == before

    assert bench.replay(**options).scanned == 0, "run twice, nothing is twice"
    bench.put("dead_letter", [a_letter(20, "loop")])
    assert bench.replay(**options).replayed == 1, "new letters are taken, old ones not again"
    assert bench.replay(**options, name="again").replayed == 4
    (first, second) = bench.api.call(ListReplays()).replays
    assert {first.records, second.records} == {4}
    assert first.state == "done"


def test_a_replay_that_dies_half_way_does_not_repeat_itself(bench, monkeypatch):
    """After a crash, the next run delivers only the batches that are missing."""
    bench.put("dead_letter", [a_letter(i) for i in range(7)])
    deliver = BrokerApi.deliver
    calls = []

    def dies_after(self, *arguments):
        calls.append(arguments)
        delivered = deliver(self, *arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return delivered

    options = {"topic": "dead_letter", "to": "back", "batch_records": 2}
    with monkeypatch.context() as broken:
        broken.setattr(BrokerApi, "deliver", dies_after)
        with pytest.raises(KeyboardInterrupt):
            bench.replay(**options)
    assert len(bench.read("back")) == 4
    seen = []
    bench.replay(**options, watch=lambda *each: seen.append(each))
    assert seen == [(2, 3), (3, 3)], "what is left is what the progress is of"
    assert [r.value for r in bench.read("back")] == [b"letter %d" % i for i in range(7)]


def test_a_replay_is_shared_by_all_cores_and_keeps_each_partition_s_order(bench):
    """Records of one source partition keep their order in the target, also without keys."""
    for partition in (0, 1):
        rows = [
            (None if number % 3 else b"k", b"%d-%02d" % (partition, number), ())
            for number in range(30)
        ]
        bench.put("dead_letter", rows, partition, partitions=2)
    bench.put("back", [], partitions=3)
    tasks_of_five = {"task_records_min": 5, "cores": 6}
    assert bench.replay(topic="dead_letter", to="back", **tasks_of_five) == (ANY, 60, 60)
    found = [[r.value for r in bench.read("back", partition)] for partition in range(3)]
    assert sum(map(len, found)) == len({value for values in found for value in values}) == 60
    for values in found:
        for source in (b"0-", b"1-"):
            mine = [value for value in values if value.startswith(source)]
            assert mine == sorted(mine)
    jobs = bench.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    tasks = [
        job.numTasks()
        for job in (jobs.apply(at) for at in range(jobs.size()))
        if "replay dead_letter to back, 0 of 60 letters)" in job.description().toString()
    ]
    assert tasks == [6]
    assert bench.replay(topic="dead_letter", to="back").replayed == 0


def test_a_preview_sends_nothing_and_a_bad_expression_is_refused(bench):
    """A preview sends nothing, and an invalid expression fails before anything is sent."""
    bench.put("dead_letter", [a_letter(1)])
    replay = Replay(topic="dead_letter", to="t", set_key="concat('x.', key_text)")
    (row,) = preview(bench.spark, bench.api, replay).collect()
    assert (row["old_key"], row["new_key"]) == ("odd key 1", "x.odd key 1")
    assert "t" not in bench.api.partition_counts()
    with pytest.raises(InvalidOption, match="nonsense"):
        bench.replay(topic="dead_letter", to="t", where="nonsense = 1")


def routed(offset, topic="append"):
    return (
        b"k",
        b"v",
        (
            Header(provenance.SOURCE_TOPIC, topic.encode()),
            Header(provenance.SOURCE_PARTITION, b"0"),
            Header(provenance.SOURCE_OFFSET, b"%d" % offset),
        ),
    )


def books(bench):
    return balance_books(bench.spark, bench.api, window="365 days")


def test_books_balance_when_every_offset_is_found_once(bench):
    """The audit counts records by outcome and reports missing, duplicate and unknown offsets."""
    bench.put("append", [(b"k", b"v", ())] * 6)
    bench.put("test", [routed(0), routed(2), routed(3)])
    bench.put("dead_letter", [a_letter(1)])
    assert books(bench) is None, "no router has run"
    bench.api.register("append", "route")
    bench.api.advance("append", 0, "route", 4)
    (window,) = books(bench).windows
    counts = (window.ingested, window.routed, window.dead_lettered, window.pending)
    assert counts == (6, 3, 1, 2)
    assert window.is_balanced

    bench.put("jobs", [routed(2), routed(77), routed(5, topic="elsewhere")])
    bench.api.advance("append", 0, "route", 5)
    found = books(bench)
    (window,) = found.windows
    assert (window.missing, window.duplicated, window.strangers) == (1, 1, 1)
    assert [(s["verdict"], s["offset"]) for s in found.samples] == [
        ("duplicated", 2),
        ("missing", 4),
        ("strangers", 77),
    ]


def test_complete_and_empty_logs_are_sound(bench):
    """An audit of complete and empty logs finds no missing or duplicate records."""
    bench.put("plain", [(b"k", b"v", ())] * 5)
    bench.put("empty", [])
    (plain, empty) = audit_topics(bench.spark, bench.api, ["plain", "empty"])
    assert (plain.records, plain.missing, plain.duplicates, plain.is_sound) == (5, 0, 0, True)
    assert (empty.records, empty.is_sound) == (0, True)


def test_a_table_is_the_newest_value_of_every_key(bench, tmp_path):
    """A table omits deleted keys; the next run reads only new records."""
    bench.put("users", [(b"a", b"1", ()), (b"b", b"1", ()), (None, b"x", ()), (b"a", b"2", ())])
    built, rows = bench.table(tmp_path / "out")
    assert (rows, built.is_incremental) == ({b"a": b"2", b"b": b"1"}, False)
    bench.put("users", [(b"b", None, ()), (b"c", b"1", ())])
    built, rows = bench.table(tmp_path / "out")
    assert (rows, built.is_incremental, built.read) == ({b"a": b"2", b"c": b"1"}, True, 2)
    assert bench.table(tmp_path / "out")[0].read == 0
    _, past = bench.table(tmp_path / "past", as_of_offset=3)
    assert past == {b"a": b"1", b"b": b"1"}
    _, timed = bench.table(tmp_path / "timed", as_of_ms=START_MS + 1000)
    assert timed[b"a"] == b"1"
    readers = {row.reader: row.seq for row in bench.api.call(ListReaders()).readers}
    assert list(readers.values()) == [6], "compaction's tombstones wait for the table"
    with pytest.raises(ConfigError, match=r"deltalake|Parquet table"):
        bench.table(tmp_path / "out", form="delta")


def test_a_table_says_which_of_its_stages_runs_and_how_far_it_is(bench, tmp_path):
    """Progress names the stages ``reading`` and ``merging``, with offsets done and in total."""
    bench.put("users", [(b"k%d" % (i % 7), b"%d" % i, ()) for i in range(100)])
    seen = []
    bench.table(tmp_path / "out", progress=lambda *each: seen.append(each), watch_s=0.01)
    assert seen[0] == ("reading users", 0, 100)
    assert {about for about, _, _ in seen} == {"reading users", "merging users"}
    assert all(0 <= done <= total == 100 for _, done, total in seen)


def test_a_delta_table_has_the_same_rows(bench, tmp_path):
    """Each run writes one version of the Delta table, with the newest value per key."""
    deltalake = pytest.importorskip("deltalake")
    out = tmp_path / "delta"
    request = TableRequest(topic="users", out=out, form="delta")
    bench.put("users", [(b"a", b"1", ()), (b"b", b"1", ())])
    assert not build_table(bench.spark, bench.api, request).is_incremental
    bench.put("users", [(b"b", None, ()), (b"a", b"2", ())])
    built = build_table(bench.spark, bench.api, request)
    assert (built.rows, built.read, built.is_incremental) == (1, 2, True)
    table = deltalake.DeltaTable(str(out))
    assert table.version() == 1
    assert table.to_pyarrow_table().select(["key", "value"]).to_pylist() == [
        {"key": b"a", "value": b"2"}
    ]


def test_jobs_see_nothing_of_a_transaction_that_was_aborted(bench, tmp_path):
    """Table, SQL and replay ignore records of aborted transactions."""
    bench.put("users", [(b"ada", b"1", ())])
    bench.put("dead_letter", [])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bench.broker.kafka, "transactional.id": "t"}
    )
    producer.init_transactions(WAIT_S)
    for topic in ("users", "dead_letter"):
        producer.begin_transaction()
        producer.produce(topic, b"2", b"ada")
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)
    assert bench.table(tmp_path / "out")[1] == {b"ada": b"1"}
    assert json.loads(bench.sql("select count(*) n from users")) == {"n": 1}
    outcome = bench.replay(topic="dead_letter", to="again")
    assert outcome.replayed == 0
