"""Compaction on a running broker: Rivven's guarantees, active clients, time-based rules.

The job's tasks run in this process; ``spark/test_compaction.py`` runs compaction on Spark.
"""

from __future__ import annotations

import json
import re
import resource
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cordwood.pipeline.compact import PassLimits
from cordwood.pipeline.compact.job import run_due
from cordwood.protocol.api.compaction import FinishCompaction
from cordwood.testing import Broker
from support.clock import ManualClock
from support.compaction import CompactionHarness, in_process
from support.http import JsonClient

DAY_MS = 86_400_000
FIGURE = ["K1:A", "K2:B", "K1:C", "K3:D", "K2:E", "K1:F", "K3:G", "K2:H", "K1:I"]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def broker(clock):
    settings = {"durability": "os", "pipeline": "off", "monitor_interval_ms": 50}
    with Broker(clock=clock, **settings) as running:
        yield running


def create(broker, name="t", **config):
    """Create a compacted topic; underscores in setting names become dots."""
    dotted = {key.replace("_", "."): str(value) for key, value in config.items()}
    topic = NewTopic(name, 1, config={"cleanup.policy": "compact", **dotted})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([topic])[name].result(10)


def produce(broker, *words, topic="t"):
    """Produce each ``key:value`` in its own batch; ``key`` alone is a tombstone."""
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    failed = []
    for word in words:
        key, colon, value = word.partition(":")
        producer.produce(
            topic, key=key, value=value if colon else None,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.flush(10)
    assert failed == []


def consume(broker, topic="t", *, start=0):
    """Return ``(offset, key:value)`` of every record from ``start`` on."""
    settings = {
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 0,  # the broker's clock is manual, so a wait would never end
    }
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "x", **settings})
    consumer.assign([TopicPartition(topic, 0, start)])
    found = []
    while (message := consumer.poll(10)) is not None and not message.error():
        value = message.value()
        key = message.key().decode()
        found.append((message.offset(), key if value is None else f"{key}:{value.decode()}"))
    consumer.close()
    return found


def compact(broker, topic="t", **options):
    api = JsonClient(broker.http)
    outcomes = run_due(api, in_process, topic=topic, **{"demand": True, **options})
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    return outcomes


def words(found):
    return [word for _, word in found]


# --- Rivven's guarantees --------------------------------------------------------------------


def test_rivven_latest_value_preserved_the_pages_figure(broker):
    """Of nine sealed records, only the newest per key remain: K3:G, K2:H and K1:I, in order."""
    create(broker)
    produce(broker, *FIGURE)
    compact(broker)
    assert words(consume(broker)) == ["K3:G", "K2:H", "K1:I"]


def test_rivven_active_segment_safety(broker):
    """A record in the active segment does not supersede K1:F until its segment is sealed."""
    create(broker, min_cleanable_dirty_ratio=0)
    produce(broker, *FIGURE[:8])
    JsonClient(broker.http).post("/api/cut", {"topic": "t"})
    produce(broker, FIGURE[8])
    compact(broker, demand=False)
    assert words(consume(broker)) == ["K1:F", "K3:G", "K2:H", "K1:I"]
    compact(broker)
    assert words(consume(broker)) == ["K3:G", "K2:H", "K1:I"]


def test_rivven_order_within_key_and_offsets_kept(broker):
    """The remaining records keep their offsets and their order."""
    create(broker)
    produce(broker, *FIGURE)
    before = consume(broker)
    compact(broker)
    after = consume(broker)
    assert after == [pair for pair in before if pair in after]
    assert [offset for offset, _ in after] == [6, 7, 8]


def test_rivven_tombstone_visibility_for_its_period(broker, clock):
    """A tombstone stays readable for ``delete.retention.ms`` after the first compaction pass."""
    create(broker)
    produce(broker, "K4:X", "K4")
    compact(broker)
    assert words(consume(broker)) == ["K4"]
    clock.advance(DAY_MS - 1)
    compact(broker)
    assert words(consume(broker)) == ["K4"]
    clock.advance(1)
    compact(broker)
    assert consume(broker) == []


def test_rivven_crash_safety_a_staged_result_is_nothing_until_it_is_swapped(broker):
    """A job that dies before the swap changes nothing, and a later compaction succeeds."""

    class Dying:
        def __init__(self, api):
            self.call = lambda request: (
                pytest.fail("dead") if isinstance(request, FinishCompaction) else api.call(request)
            )

    create(broker)
    produce(broker, *FIGURE)
    before = consume(broker)
    with pytest.raises(pytest.fail.Exception):
        run_due(Dying(JsonClient(broker.http)), in_process, topic="t", demand=True)
    assert consume(broker) == before
    broker.restart()
    compact(broker)
    assert words(consume(broker)) == ["K3:G", "K2:H", "K1:I"]


# --- active consumers and producers ---------------------------------------------------------


def test_a_consumer_in_a_segment_being_replaced_goes_on_without_error_gap_or_repeat(broker):
    """A consumer halfway through a segment reads on after compaction replaces it."""
    create(broker)
    produce(broker, *(f"k{i % 50}:{i}" for i in range(200)))
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g",
                         "enable.partition.eof": True, "fetch.message.max.bytes": 2000,
                         "fetch.wait.max.ms": 0, "enable.auto.commit": False,
                         "queued.min.messages": 1, "queued.max.messages.kbytes": 1})  # fmt: skip
    consumer.assign([TopicPartition("t", 0, 0)])
    seen = [consumer.poll(10).offset() for _ in range(60)]
    compact(broker)
    while (message := consumer.poll(10)) is not None and not message.error():
        seen.append(message.offset())
    consumer.close()
    assert seen == sorted(set(seen))
    assert set(seen) >= set(range(150, 200)), "the newest of every key"


def test_producers_keep_writing_while_a_pass_runs(broker):
    """Records acknowledged during compaction are kept, and each key has its newest value."""
    create(broker, segment_bytes=20_000)
    produce(broker, *(f"k{i % 20}:{i}" for i in range(100)))
    done = threading.Event()
    sent = []

    def write():
        producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 1})
        number = 1000
        while not done.is_set():
            producer.produce("t", key=f"k{number % 20}", value=str(number))
            producer.flush(10)
            sent.append(number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(3):
        compact(broker)
    done.set()
    writer.join()
    state = dict(word.split(":") for word in words(consume(broker)))
    newest = {f"k{number % 20}": str(number) for number in sent}
    assert {key: state[key] for key in newest} == newest
    assert len(state) == 20


# --- time, policies, readers ----------------------------------------------------------------


def test_an_idle_topic_is_cut_and_compacted_by_max_lag_alone(broker, clock):
    """``max.compaction.lag.ms`` seals and compacts the active segment without a new append."""
    create(broker, max_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=1)
    produce(broker, "a:1", "a:2")
    assert compact(broker, demand=False) == []
    clock.advance(60_001)
    api = JsonClient(broker.http)
    wait_for(lambda: api.get("/api/compaction", topic="t")["partitions"][0]["is_due"])
    (outcome,) = compact(broker, None, demand=False)
    assert outcome.rule == "max_lag"
    assert words(consume(broker)) == ["a:2"]


def wait_for(holds, tries=2000):
    """Poll until the condition holds; the monitor runs every 50 ms."""
    pause = threading.Event()
    for _ in range(tries):
        if holds():
            return
        pause.wait(0.01)
    pytest.fail("it never came to hold")


def test_compact_delete_expires_and_goes_on_compacting(broker, clock):
    """[39] With ``compact,delete``, old segments expire and newer records are still compacted."""
    create(broker, cleanup_policy="compact,delete", retention_ms=10_000)
    now = clock.now_ms()
    produce_at(broker, now, "a:1", "a:2")
    compact(broker)
    assert words(consume(broker)) == ["a:2"]
    clock.advance(20_000)
    api = JsonClient(broker.http)
    wait_for(lambda: start_of(api) == 2)
    produce_at(broker, clock.now_ms(), "b:1", "b:2")
    compact(broker)
    assert words(consume(broker, start=2)) == ["b:2"]


def start_of(api):
    return api.get("/api/topics", name="t")["topics"][0]["partitions"][0]["log_start_offset"]


def produce_at(broker, at_ms, *pairs):
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    for pair in pairs:
        key, _, value = pair.partition(":")
        producer.produce("t", key=key, value=value, timestamp=at_ms)
        producer.flush(10)


def test_a_tombstone_waits_for_a_registered_reader(broker, clock):
    """A tombstone is kept until every registered reader has passed it."""
    create(broker)
    api = JsonClient(broker.http)
    api.post("/api/readers", {"action": "register", "topic": "t", "reader": "slow"})
    produce(broker, "a:1", "a")
    compact(broker)
    clock.advance(10 * DAY_MS)
    compact(broker)
    assert words(consume(broker)) == ["a"]
    (row,) = api.get("/api/compaction", topic="t")["partitions"]
    assert "wait for slow" in row["explain"]
    options = {"action": "advance", "topic": "t", "reader": "slow", "partition": 0, "offset": 2}
    api.post("/api/readers", options)
    (outcome,) = compact(broker, demand=False)
    assert outcome.rule == "horizon"
    assert consume(broker) == []


# --- metrics, health and commands -----------------------------------------------------------


def test_metrics_and_state_tell_what_a_pass_did_and_survive_a_restart(broker):
    """Compaction metrics keep their values across a broker restart."""
    create(broker)
    produce(broker, *FIGURE)
    (outcome,) = compact(broker)
    broker.restart()
    text = metrics(broker)
    where = '{partition="0",topic="t"}'
    assert f"cordwood_log_cleaner_compactions_total{where} 1.0" in text
    freed = float(outcome.freed_bytes)
    assert f"cordwood_log_cleaner_cleaned_bytes_total{where} {freed}" in text
    assert f"cordwood_log_cleaner_dirty_ratio{where} 0.0" in text
    assert "cordwood_log_cleaner_duration_seconds" in text
    assert 'cordwood_topic_bytes{cleanup="compact",topic="t"}' in text


def metrics(broker):
    import urllib.request

    with urllib.request.urlopen(f"http://{broker.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return "\n".join(sorted_labels(line) for line in lines)


def sorted_labels(line):
    """Sort the labels of a metrics line."""
    name, brace, rest = line.partition("{")
    if not brace:
        return line
    labels, _, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}"


def test_a_failing_partition_is_named_by_readyz_and_does_not_make_it_unready(broker):
    """``/readyz`` lists a partition whose compaction failed and still reports ready."""
    create(broker)
    produce(broker, *FIGURE)
    api = JsonClient(broker.http)
    begin = {"action": "begin", "topic": "t", "demand": True, "dry": False}
    (order,) = api.post("/api/compaction", begin)["orders"]
    where = {"topic": "t", "partition": 0, "lease": order["lease"]}
    api.post("/api/compaction", {"action": "fail", **where, "error": "bad bytes"})
    ready = api.get("/readyz")
    assert (ready["ready"], ready["compaction_quarantined"]) == (True, {"t-0": "bad bytes"})
    (row,) = api.get("/api/compaction", topic="t")["partitions"]
    assert row["wait"] == "quarantined"


def test_the_command_explains_without_spark(broker):
    """``cordwood compact --explain`` reports why a partition is not compacted."""
    from typer.testing import CliRunner

    from cordwood.cli.app import app

    create(broker)
    produce(broker, *FIGURE)
    arguments = ["compact", "t", "--explain", "--broker", broker.kafka, "--format", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert "active segment, which is never compacted" in row["explain"]


def test_topic_describe_shows_how_compaction_stands(broker):
    """``topic describe`` shows dirty ratio, last compaction, freed bytes and whether one is due."""
    from typer.testing import CliRunner

    from cordwood.cli.app import app

    create(broker)
    produce(broker, *FIGURE)
    (outcome,) = compact(broker)
    arguments = ["topic", "describe", "t", "--broker", broker.kafka, "--format", "json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (described,) = json.loads(result.stdout)
    (row,) = described["partitions"]
    assert (row["dirty_ratio"], row["freed_bytes"]) == (0.0, outcome.freed_bytes)
    assert row["last_compacted"].startswith("2023-11-14T")
    assert row["explain"].startswith("not due: ")


def test_bad_requests_are_refused_with_the_remedy(broker):
    """Unknown actions, uncompacted topics and missing fields fail with an explanatory error."""
    api = JsonClient(broker.http)
    create(broker)
    create(broker, "plain", cleanup_policy="delete")
    bad = [
        ({"action": "dance", "topic": "t", "partition": 0}, "renew, finish, fail or release"),
        ({"action": "begin", "topic": "plain", "demand": True}, r"cleanup\.policy"),
        ({"action": "finish", "topic": "t", "partition": 0, "topic_id": "x"}, r"\$\.jobs: missing"),
    ]
    for body, words_ in bad:
        with pytest.raises(Exception, match=words_):
            api.post("/api/compaction", body)


# --- memory ---------------------------------------------------------------------------------

GIVEN_BYTES = 96 << 20  # in addition to what the process holds before the pass
LOG_BYTES = 4 * GIVEN_BYTES
VALUE_BYTES = 32_000


@pytest.fixture
def tight_memory():
    """Return a function that limits further allocation by this process; undone at the end."""
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def tighten(more_bytes):
        (held,) = re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        resource.setrlimit(resource.RLIMIT_DATA, (int(held) * 1024 + more_bytes, before[1]))

    yield tighten
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_log_larger_than_all_the_memory_there_is_gets_compacted(tmp_path, tight_memory):
    """Compaction succeeds with memory limited to a quarter of the log's size.

    The kernel enforces the limit, and the test checks that it takes effect.
    """
    with CompactionHarness(tmp_path / "data", {"segment.bytes": str(LOG_BYTES // 2)}) as harness:
        rounds, keys = 4, LOG_BYTES // 4 // VALUE_BYTES
        for turn in range(rounds):
            for start in range(0, keys, 32):
                records = [
                    (b"%d" % i, b"%d" % turn * VALUE_BYTES) for i in range(start, start + 32)
                ]
                harness.append(*records)
        harness.cut()
        make_small_pass_in(tmp_path / "warm")  # loads the kernels before memory is limited
        tight_memory(GIVEN_BYTES)
        with pytest.raises(MemoryError):
            bytearray(2 * GIVEN_BYTES)
        outcome = harness.compact_well(limits=PassLimits(task_bytes=16 << 20))
    assert outcome.bytes_before >= LOG_BYTES
    assert outcome.records_after == outcome.records_before // rounds


def make_small_pass_in(data):
    with CompactionHarness(data) as harness:
        for value in (b"old", b"new"):
            harness.append((b"k", value))
        harness.cut()
        harness.compact_well()
