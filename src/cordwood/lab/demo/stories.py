"""The two stories of the demo; every number shown is measured and every claim is checked."""

from __future__ import annotations

import importlib.util
import time

from cordwood.client import Producer
from cordwood.lab.demo.cdc import Change, make_changelog, state_hash
from cordwood.lab.demo.stage import DemoRun, table_rows
from cordwood.lab.demo.timecode import Tape, find_faults, record_tape
from cordwood.plural import plural
from cordwood.protocol.api.readers import ListReaders
from cordwood.protocol.api.topics import CutTopic

SEED = 11
USERS = 1_000
CHANGES = 20_000
POISON = 16
DECKS = 2
FRAMES = 1_500
MISSING, DOUBLED = 6, 3


def play_cdc(stage: DemoRun) -> None:
    """A table's changelog is routed, repaired, compacted and archived, and still complete."""
    stage.title("a users table's changelog")
    log = make_changelog(SEED, USERS, CHANGES, POISON)
    truth = state_hash(log.truth.values())
    _produce(stage, log.changes)
    _route(stage, log.changes)
    before = state_hash(table_rows(stage, "users"))
    stage.tell(f"table as routed {before}, source of truth {truth}")
    stage.check("without the poison the table is wrong, as it must be", before != truth)
    _repair(stage)
    _compact(stage)
    _archive(stage, "users")
    stage.step(
        "bring the Parquet table up to date and compare it with the source of truth",
        "what all of this is for: the log still stands for exactly the same table",
    )
    rows = table_rows(stage, "users")
    stage.tell(f"{len(rows)} users, hash {state_hash(rows)}; source of truth {truth}")
    stage.check("the replayed table equals the source of truth", state_hash(rows) == truth)


def _produce(stage: DemoRun, changes: list[Change]) -> None:
    name = "confluent-kafka" if importlib.util.find_spec("confluent_kafka") else "cordwood's own"
    stage.step(
        f"produce {len(changes)} changes with a Kafka client ({name})",
        "any Kafka client writes to it, unchanged",
    )
    started = time.monotonic()
    if name == "confluent-kafka":
        _produce_confluent(stage.broker.kafka, changes)
    else:
        _produce_own(stage.broker.kafka, changes)
    seconds = time.monotonic() - started
    stage.tell(f"{len(changes)} acknowledged in {seconds:.1f} s, all of them on the device")
    stage.check("every change is in the log", stage.client.get_ack("append") == len(changes))
    stage.moment("produce")


def _produce_confluent(kafka: str, changes: list[Change]) -> None:
    from confluent_kafka import Producer as KafkaProducer

    producer = KafkaProducer(
        {"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
    )
    for number, change in enumerate(changes):
        producer.produce("append", key=change.key, value=change.value)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def _produce_own(kafka: str, changes: list[Change]) -> None:
    from cordwood.batch.records import encode_batch
    from cordwood.client.kafka import KafkaClient
    from cordwood.model import Record, TopicPartition

    now_ms = time.time_ns() // 1_000_000
    with KafkaClient(kafka) as client:
        for start in range(0, len(changes), 1000):
            records = [
                Record(i, now_ms, change.key, change.value)
                for i, change in enumerate(changes[start : start + 1000])
            ]
            client.produce(TopicPartition("append", 0), encode_batch(records))


def _route(stage: DemoRun, changes: list[Change]) -> None:
    poison = sum(change.is_poison for change in changes)
    stage.step(
        "route it with Spark Structured Streaming, exactly once",
        "the first part of the key names the topic; what has no way goes to dead_letter",
    )
    seconds = stage.route(len(changes))
    routed, dead = stage.records_of("users"), stage.records_of("dead_letter")
    stage.tell(f"{routed} to users, {dead} to dead_letter, in {seconds:.1f} s with Spark's start")
    stage.check("routed + dead letters = produced", routed + dead == len(changes))
    stage.check("exactly the poison is dead", dead == poison)
    stage.moment("route")


def _repair(stage: DemoRun) -> None:
    from cordwood.pipeline.replay import Replay, run_replay

    stage.step(
        "repair the dead letters with one SQL expression and replay them",
        "the originals stay where they are: an audit trail, not a bin",
    )
    before = stage.records_of("users")
    replay = Replay(
        topic="dead_letter",
        to="users",
        where="reason = 'bad_topic'",
        set_key="replace(key_text, '/', '.')",
    )
    with stage.watch("replaying", None):
        first = run_replay(stage.spark, stage.api, replay)
        again = run_replay(stage.spark, stage.api, replay)
    stage.tell(
        f"replayed {plural(first.replayed, 'letter')}; a second run replayed {again.replayed}"
    )
    grown = stage.records_of("users") - before
    stage.check("every dead letter came back once", grown == first.replayed == POISON)
    stage.check("the dead letters are still there", stage.records_of("dead_letter") == POISON)
    stage.moment("replay")


def _compact(stage: DemoRun) -> None:
    from cordwood.pipeline.compact import on_spark, run_due

    stage.step(
        "compact the changelog on Spark", "only the newest record of every key stays, at its offset"
    )
    stage.client.configure("users", {"cleanup.policy": "compact"})
    size, records = stage.bytes_of("users"), stage.records_of("users")
    with stage.watch("compacting", None):
        (outcome,) = run_due(stage.api, on_spark(stage.spark), topic="users", demand=True)
    after, left = stage.bytes_of("users"), stage.records_of("users")
    stage.tell(
        f"{records} → {plural(left, 'record')}, {size:,} → {after:,} bytes, in "
        f"{outcome.seconds:.1f} s"
    )
    stage.check("compaction succeeded", not outcome.error)
    stage.check("the log is many times smaller", after * 3 < size)
    stage.compacted(size - after)
    stage.moment("compact")


def _archive(stage: DemoRun, topic: str) -> None:
    from cordwood.client.storage import open_storage
    from cordwood.client.topic_archive import list_topic_archives
    from cordwood.pipeline.archive import ArchiveRequest, create_archive

    stage.step(
        f"archive {topic} in bundles that prove themselves",
        "each bundle is read back before anything counts on it; the manifest is a chain",
    )
    stage.api.call(CutTopic(topic))
    storage = open_storage(str(stage.directory / "archive"))
    request = ArchiveRequest(topic=topic, bundle_records=500)
    with stage.watch("archiving", None):
        entries = create_archive(stage.spark, stage.api, storage, request)
    topic_archive = list_topic_archives(storage, topic)[-1]
    _, findings = topic_archive.verify()
    size = sum(entry.size_bytes for entry in entries)
    stage.tell(
        f"{plural(len(entries), 'bundle')}, {plural(sum(e.records for e in entries), 'record')}, "
        f"{size:,} bytes"
    )
    stage.check("every bundle and the manifest's chain verify", bool(entries) and not findings)
    stage.archived(size)
    stage.moment(f"archive {topic}")


def play_timecode(stage: DemoRun) -> None:
    """Timecode over plain lines is kept until its reader has it, audited, and archived."""
    stage.title("a timecode bus over plain lines")
    tapes = [record_tape(SEED, f"deck-{n}", FRAMES, MISSING, DOUBLED) for n in range(1, DECKS + 1)]
    stage.step(
        f"{DECKS} decks push {sum(len(t.codes) for t in tapes)} frames as lines",
        "routing_key|timestamp|n|payload: nc could do it",
    )
    stage.client.register("smpte", "edit-suite")
    stage.client.configure("smpte", {"cleanup.policy": "consume"})
    before = stage.client.get_ack("append")
    for tape in tapes:
        with Producer(stage.broker.ingress, name=tape.deck) as producer:
            producer.send_and_confirm([(f"smpte.{tape.deck}", code) for code in tape.codes])
        stage.route(stage.client.get_ack("append"))
        stage.client.cut("smpte")
    sent = stage.client.get_ack("append") - before
    stage.tell(f"{sent} frames acknowledged one by one, on the device; a reel is cut for each deck")
    stage.check("every frame was acknowledged", sent == sum(len(t.codes) for t in tapes))
    stage.moment("decks")
    _hold(stage, sent)
    _audit(stage, tapes)
    _archive(stage, "smpte")
    _release(stage, sent)


def _hold(stage: DemoRun, frames: int) -> None:
    stage.step(
        "the edit suite is at lunch; the reels are cut, and nothing it needs is reclaimed",
        "cleanup.policy=consume: a stuck reader costs disk, never data",
    )
    dropped = stage.client.reclaim("smpte")
    (reader,) = stage.api.call(ListReaders("smpte")).readers
    stage.tell(
        f"edit-suite lags {reader.lag} frames and holds {reader.held_bytes:,} bytes "
        f"in {plural(stage.segments_of('smpte'), 'segment')}"
    )
    stage.check("RECLAIM waits for the reader", dropped == 0)
    stage.check("it holds every frame", reader.lag == frames)


def _audit(stage: DemoRun, tapes: list[Tape]) -> None:
    stage.step(
        "audit the tapes with Spark SQL",
        "the gaps and doubles that were put in are found, by timecode",
    )
    for tape in tapes:
        rows = stage.spark.sql(
            """
            select cast(value as string) from {frames}
            where cast(key as string) = {key} order by partition, offset
            """,
            frames=stage.frame("smpte"),
            key=f"smpte.{tape.deck}",
        ).collect()
        missing, doubled = find_faults([row[0] for row in rows], FRAMES)
        stage.tell(f"{tape.deck}: missing {', '.join(missing)}; twice {', '.join(doubled)}")
        found, put_in = (missing, doubled), (tape.missing, tape.doubled)
        stage.check(f"{tape.deck}: found is what was put in", found == put_in)


def _release(stage: DemoRun, frames: int) -> None:
    stage.step(
        "the edit suite is back, reads everything and acknowledges",
        "what every named reader has passed may go, and only now it does",
    )
    size = stage.bytes_of("smpte")
    stage.client.ack("smpte", "edit-suite", frames)
    stage.client.reclaim("smpte")  # unless the monitor has already done it
    freed = size - stage.bytes_of("smpte")
    stage.reclaimed(freed)
    status = stage.client.status(1, "smpte")
    stage.tell(f"{freed:,} bytes reclaimed; GET_STATUS 1: {status.word} {status.bundle}")
    stage.check("the consumed segments went", freed == size)
    stage.check("its records are found in the archive", status.word == "ARCHIVED")
    stage.moment("release")
