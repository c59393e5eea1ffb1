"""An unfinishable delivery is reported. It stops no start-up and blocks no other query."""

from __future__ import annotations

import http.client
import json
import shutil
from contextlib import closing

import pytest

from cordwood.config import DAY_MS
from cordwood.decide.delivery import DeliveryRecord, Part
from cordwood.errors import (
    BatchTooLarge,
    PartitionOffline,
    QuarantinedDelivery,
    RequestError,
    StaleDelivery,
    UnsafePath,
)
from cordwood.metadata.keys import past_delivery_key
from cordwood.metadata.sqlite import SqliteStore
from cordwood.testing import Broker
from support.clock import ManualClock
from support.deliveries import (
    READER,
    a_delivery,
    change_topics,
    cursor,
    deliver,
    ensure,
    stage,
    staged,
    topic_id,
    words,
)
from support.http import JsonClient


class Crash(BaseException):
    """Simulates a crash of the broker."""


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        ensure(running, "in")  # a cursor needs an existing topic
        yield running


@pytest.fixture
def accepted(broker, tmp_path, monkeypatch):
    """The data directory after a crash right after a delivery to ``a`` and ``b`` was accepted."""
    ensure(broker, "a", "b")
    stage(broker, "job", x="1 2", y="3", z="4")
    deliveries = broker.service.broker.deliveries

    async def die(*_):
        raise Crash

    with monkeypatch.context() as dead:
        dead.setattr(deliveries, "_finish", die)
        with pytest.raises(Crash):
            deliver(broker, a_delivery())
    shutil.copytree(broker.data, tmp_path / "left")
    return tmp_path / "left"


def ask(broker, method, path, **params):
    from urllib.parse import urlencode

    connection = http.client.HTTPConnection(broker.http)
    try:
        connection.request(method, f"{path}?{urlencode(params)}")
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def health(broker):
    return ask(broker, "GET", "/api/health")[1]


def test_a_topic_deleted_after_a_delivery_was_accepted_does_not_stop_the_start(accepted):
    """Records for the deleted topic are cancelled and counted. The others are appended."""
    change_topics(accepted, delete=["a"])
    with Broker(accepted, durability="os") as again:
        assert (words(again, "a"), words(again, "b"), cursor(again)) == ([], ["3"], 10)
        assert "a" not in again.service.broker.store.topics
        deliveries = again.service.broker.deliveries
        assert (deliveries.stats.cancelled_records, deliveries.quarantined, staged(again)) == (
            3,
            {},
            [],
        )
        assert health(again)["ready"]


def test_a_topic_that_was_created_again_does_not_get_the_records_of_the_old_one(accepted):
    """A delivery is bound to topic ids, so a new topic of the same name gets no records."""
    change_topics(accepted, delete=["a"], create=["a"])
    with Broker(accepted, durability="os") as again:
        assert (words(again, "a"), words(again, "b")) == ([], ["3"])
        assert again.service.broker.deliveries.stats.cancelled_records == 3


def test_a_cursor_stays_where_it_is_on_a_source_that_was_created_again(accepted):
    """The cursor does not move on the new topic; otherwise its first records would be skipped."""
    change_topics(accepted, delete=["in"], create=["in"])
    with Broker(accepted, durability="os") as again:
        assert (words(again, "a"), words(again, "b")) == (["1", "2", "4"], ["3"])
        assert cursor(again) is None


def test_a_topic_deleted_while_a_delivery_is_appended_cancels_its_part(broker, monkeypatch):
    """Records for the deleted topic are cancelled, and the delivery succeeds."""
    ensure(broker, "a", "b")
    stage(broker, "job", x="1 2", y="3", z="4")
    appender = broker.service.broker.deliveries._appender
    submit = appender._produce.submit

    async def late(partition, *arguments, **options):
        if partition.tp.topic == "a" and "a" in broker.service.broker.store.topics:
            await broker.service.broker.topics.delete("a")
        return await submit(partition, *arguments, **options)

    monkeypatch.setattr(appender._produce, "submit", late)
    assert deliver(broker, a_delivery())
    assert (words(broker, "a"), words(broker, "b"), cursor(broker)) == ([], ["3"], 10)
    assert broker.service.broker.deliveries.stats.cancelled_records == 3


def test_missing_files_quarantine_one_query_and_no_other(accepted):
    """Health and the listing name the query and the cause. A discard ends the quarantine."""
    (accepted / "staging" / "job" / "z").unlink()
    with Broker(accepted, durability="os") as again:
        assert "z was not staged" in health(again)["deliveries_quarantined"]["q"]
        assert health(again)["ready"], "the broker serves"
        _, listed = ask(again, "GET", "/api/deliveries")
        assert listed["deliveries"]["q"]["done"] is False
        assert "z was not staged" in listed["deliveries"]["q"]["quarantined"]
        with pytest.raises(QuarantinedDelivery, match=r"batch 0 of query q .*pipeline discard q"):
            deliver(again, a_delivery(1))
        stage(again, "other", x="5", y="6", z="7")
        assert deliver(again, a_delivery(0, query="other", job="other"))
        status, answer = ask(again, "DELETE", "/api/deliveries", query="q")
        assert (status, answer["discarded"]) == (200, {"a-0": 3})
        assert health(again)["deliveries_quarantined"] == {}
        assert again.service.broker.deliveries.stats.discarded_records == 3
        stage(again, "next", x="8", y="9", z="10")
        assert deliver(again, a_delivery(1, job="next"))
        assert (words(again, "a"), words(again, "b")) == (["5", "7", "8", "10"], ["3", "6", "9"])


def test_files_that_were_staged_again_take_the_place_of_lost_ones(accepted):
    """If no record was stored yet, staging the batch again completes the delivery."""
    shutil.rmtree(accepted / "staging" / "job")
    with Broker(accepted, durability="os") as again:
        assert "q" in health(again)["deliveries_quarantined"]
        stage(again, "anew", x="1 2", y="3", z="4")
        assert deliver(again, a_delivery(job="anew"))
        assert (words(again, "a"), words(again, "b")) == (["1", "2", "4"], ["3"])
        assert health(again)["deliveries_quarantined"] == {}


def test_files_that_changed_after_they_were_accepted_are_not_appended(accepted):
    """A delivery appends only the bytes that were checked when it was accepted."""
    good = (accepted / "staging" / "job" / "x").read_bytes()
    (accepted / "staging" / "job" / "x").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with Broker(accepted, durability="os") as again:
        assert "changed after it was staged" in health(again)["deliveries_quarantined"]["q"]
        assert words(again, "a") == []
        (accepted / "staging" / "job" / "x").write_bytes(good)
        again.run(again.service.broker.deliveries.retry_quarantined)
        assert (words(again, "a"), words(again, "b")) == (["1", "2", "4"], ["3"])
        assert health(again)["deliveries_quarantined"] == {}


def test_a_mistake_in_one_retry_holds_up_no_other_query(broker, monkeypatch):
    """An unexpected error in one retry is reported, and the other queries are still retried."""
    deliveries, tried = broker.service.broker.deliveries, []

    async def fail(query, _):
        tried.append(query)
        raise ZeroDivisionError("our own mistake")

    def get(query):
        return DeliveryRecord(batch=0, is_done=False)

    monkeypatch.setattr(deliveries, "_finish", fail)
    monkeypatch.setattr(deliveries._registry, "get", get)
    deliveries.quarantined |= {"p": "x", "q": "y"}
    broker.run(deliveries.retry_quarantined)
    assert tried == ["p", "q"]
    assert health(broker)["deliveries_quarantined"] == dict.fromkeys("pq", "our own mistake")


def test_an_offline_partition_holds_up_only_what_is_for_it(accepted):
    """Start-up continues. The query's next delivery fails and names the discard command."""
    change_topics(accepted)  # start once, so that a missing directory is known to be lost
    shutil.rmtree(accepted / "a-0")
    with Broker(accepted, durability="os") as again:
        assert words(again, "b") == ["3"]
        with pytest.raises(PartitionOffline, match=r"a-0 .*pipeline discard q"):
            deliver(again, a_delivery(1))


def test_a_record_that_cannot_be_read_stops_no_start(accepted):
    """A delivery record that cannot be decoded quarantines its query. A discard removes it."""
    store = SqliteStore(accepted / "meta.db", ManualClock())
    store.txn(put={"now/sink/q": b'{"batch": 1}'})
    store.close()
    with Broker(accepted, durability="os") as again:
        assert "cannot be read" in health(again)["deliveries_quarantined"]["q"]
        assert ask(again, "DELETE", "/api/deliveries", query="q")[1] == {"discarded": {}}
        assert health(again)["deliveries_quarantined"] == {}


def test_a_delivery_older_than_the_log_remembers_is_not_guessed_at(accepted):
    """Expired producer state cannot show what was stored, so the delivery is quarantined."""
    clock = ManualClock()
    clock.advance(2**41)
    with Broker(accepted, durability="os", clock=clock) as again:
        assert "producer.id.expiration.ms" in health(again)["deliveries_quarantined"]["q"]
        assert words(again, "a") == []


def test_an_upload_to_a_job_that_was_accepted_is_refused(accepted):
    """Files of an accepted delivery were checked, so a later upload cannot replace them."""
    (accepted / "staging" / "job" / "z").unlink()
    refused = pytest.raises(RequestError, match="was already delivered")
    with Broker(accepted, durability="os") as again, refused:
        JsonClient(again.http).put("/api/staging", b"", job="job", name="x")


def test_files_staged_for_a_topic_that_was_created_again_are_refused_whole(broker):
    """The delivery names topic ids. If one does not match, none of its records is appended."""
    ensure(broker, "a", "b")
    parts = [Part("a", 0, "x", topic_id="another"), Part("b", 0, "y")]
    stage(broker, "job", x="1", y="2")
    with pytest.raises(StaleDelivery, match="topic a was deleted, or created again"):
        deliver(broker, a_delivery(parts=parts))
    assert (words(broker, "a"), words(broker, "b"), cursor(broker)) == ([], [], None)
    parts[0] = parts[0]._replace(topic_id=topic_id(broker, "a"))
    assert deliver(broker, a_delivery(parts=parts, sources={"in": topic_id(broker, "in")}))
    with pytest.raises(StaleDelivery, match="topic in was deleted, or created again"):
        deliver(broker, a_delivery(1, parts=[], sources={READER.topic: "another"}))


@pytest.mark.parametrize("name", ["../../in-0/00000000000000000000.log", "/etc/passwd"])
def test_a_delivery_never_reads_outside_of_staging(broker, name):
    """A file name with a relative or absolute path is refused before any file is opened."""
    body = {
        "query": "q",
        "batch": 0,
        "job": "job",
        "parts": [{"topic": "a", "partition": 0, "file": name, "sha256": "0" * 64}],
    }
    with pytest.raises(RequestError, match="is not a valid file name"):
        JsonClient(broker.http).post("/api/deliveries", body)
    assert "a" not in broker.service.broker.store.topics


def test_a_delivery_follows_no_link(broker, tmp_path):
    """A staged file or job directory that is a symbolic link is refused with its name."""
    stage(broker, "job", y="1", z="2")
    (tmp_path / "outside").write_bytes((broker.data / "staging" / "job" / "y").read_bytes())
    (broker.data / "staging" / "job" / "x").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePath, match="job/x is a link"):
        deliver(broker, a_delivery())
    (broker.data / "staging" / "linked").symlink_to(broker.data / "staging" / "job")
    with pytest.raises(UnsafePath, match="staging/linked is a link"):
        deliver(broker, a_delivery(job="linked", parts=[Part("a", 0, "y")]))
    assert words(broker, "a") == []


def test_a_batch_above_max_message_bytes_is_refused_with_topic_and_setting(broker):
    """``max.message.bytes`` also applies to staged batches."""
    ensure(broker, "a", "b")
    broker.run(lambda: broker.service.broker.topics.alter("a", {"max.message.bytes": "60"}))
    stage(broker, "job", x="1", y="2", z="3")
    with pytest.raises(BatchTooLarge, match=r"topic a: .*raise its max.message.bytes"):
        deliver(broker, a_delivery())
    assert words(broker, "b") == []


def test_dead_letters_are_taken_whatever_their_size(broker):
    """The dead-letter topic accepts batches above its ``max.message.bytes``."""
    ensure(broker, "dead_letter")
    alter = broker.service.broker.topics.alter
    broker.run(lambda: alter("dead_letter", {"max.message.bytes": "60"}))
    stage(broker, "job", x="large")
    assert deliver(broker, a_delivery(parts=[Part("dead_letter", 0, "x")]))
    assert words(broker, "dead_letter") == ["large"]


# --- delivery registry ----------------------------------------------------------------------


@pytest.fixture
def timed(tmp_path):
    clock = ManualClock()
    with Broker(tmp_path / "data", durability="os", clock=clock) as running:
        ensure(running, "in")
        yield running, clock


def batch_of(query, batch=0, **more):
    made = a_delivery(batch, query=query, job=f"{query}.{batch}", **more)
    return made._replace(cursors={})


def known(broker):
    return set(ask(broker, "GET", "/api/deliveries")[1]["deliveries"])


def test_a_write_that_happens_once_is_forgotten_within_the_hour(timed):
    """The registry forgets a one-time write after an hour. Until then, a repeat appends nothing."""
    broker, clock = timed
    for number in range(20):
        query = f"write-{number}"
        stage(broker, f"{query}.0", x="1", y="2", z="3")
        assert deliver(broker, batch_of(query, is_once=True))
        assert not deliver(broker, batch_of(query, is_once=True))
    assert len(known(broker)) == 20
    clock.advance(3_600_001)
    broker.run(broker.service.broker.deliveries.sweep)
    assert known(broker) == set()
    deliveries = broker.service.broker.deliveries
    assert deliveries.known_count == 0
    assert (deliveries.staged.needed(), len(deliveries._locks)) == (set(), 0), (
        "nothing is left in memory either"
    )
    with pytest.raises(Exception, match="was not staged"):
        deliver(broker, batch_of("write-0", is_once=True))
    assert len(words(broker, "b")) == 20


def test_a_stream_that_comes_back_after_it_was_forgotten_is_not_appended_twice(timed, tmp_path):
    """A forgotten query's last batch stays on disk, so a repeated batch appends nothing."""
    broker, clock = timed
    for batch in (0, 1):
        stage(broker, f"s.{batch}", x="1", y=str(batch), z="3")
        assert deliver(broker, batch_of("s", batch))
    clock.advance(30 * DAY_MS + 1)
    broker.run(broker.service.broker.deliveries.sweep)
    assert known(broker) == set()
    broker.restart()
    assert ask(broker, "GET", "/api/deliveries", query="s")[1]["deliveries"]["s"]["batch"] == 1
    stage(broker, "s.1", x="1", y="1", z="3")
    assert not deliver(broker, batch_of("s", 1))
    stage(broker, "s.0", x="1", y="0", z="3")
    with pytest.raises(StaleDelivery, match="already delivered batch 1 and now sends batch 0"):
        deliver(broker, batch_of("s", 0))
    stage(broker, "s.2", x="1", y="2", z="3")
    assert deliver(broker, batch_of("s", 2))
    assert words(broker, "b") == ["0", "1", "2"]
    assert known(broker) == {"s"}


def past_of(broker, query):
    """Return the stored keys of a forgotten query."""
    where = past_delivery_key(query)
    with closing(SqliteStore(broker.data / "meta.db", ManualClock())) as store:
        return [kv.key for kv in store.range(where)[1] if kv.key == where]


def test_a_query_that_came_back_is_remembered_once(timed):
    """A query that delivers again moves from the forgotten queries back to the recent ones."""
    broker, clock = timed
    stage(broker, "s.0", x="1", y="0", z="3")
    assert deliver(broker, batch_of("s", 0))
    clock.advance(30 * DAY_MS + 1)
    broker.run(broker.service.broker.deliveries.sweep)
    assert past_of(broker, "s") != []
    stage(broker, "s.1", x="1", y="1", z="3")
    assert deliver(broker, batch_of("s", 1))
    assert past_of(broker, "s") == []


def test_a_query_of_the_past_can_be_forgotten_for_good(timed):
    """After an operator discards a forgotten query, it can start again with any batch."""
    broker, clock = timed
    stage(broker, "s.7", x="1", y="7", z="3")
    assert deliver(broker, batch_of("s", 7))
    clock.advance(30 * DAY_MS + 1)
    broker.run(broker.service.broker.deliveries.sweep)
    broker.run(lambda: broker.service.broker.deliveries.give_up("s"))
    assert past_of(broker, "s") == []
    stage(broker, "s.0", x="1", y="0", z="3")
    assert deliver(broker, batch_of("s", 0))
    assert words(broker, "b") == ["7", "0"]


def test_a_query_whose_next_batch_is_being_delivered_is_not_forgotten(timed):
    """The sweep keeps a query while a delivery holds its lock, or if a newer batch was stored."""
    broker, clock = timed
    deliveries = broker.service.broker.deliveries
    stage(broker, "s.0", x="1", y="0", z="3")
    assert deliver(broker, batch_of("s", 0))
    clock.advance(30 * DAY_MS + 1)

    async def forget_during_its_turn():
        async with deliveries._locks.held("s"):
            return await deliveries.forget_idle()

    assert broker.run(forget_during_its_turn) == []
    stage(broker, "s.1", x="1", y="1", z="3")
    assert deliver(broker, batch_of("s", 1))
    deliveries._forget_still_idle(["s"])  # as if planned before that batch was stored
    assert known(broker) == {"s"}


def test_what_is_under_way_or_recent_is_kept(timed):
    """The sweep keeps a query that delivered a batch less than 30 days ago."""
    broker, clock = timed
    stage(broker, "s.0", x="1", y="2", z="3")
    assert deliver(broker, batch_of("s"))
    clock.advance(29 * DAY_MS)
    broker.run(broker.service.broker.deliveries.sweep)
    assert known(broker) == {"s"}
