"""A checkpoint stores topic ids, so that a recreated topic is not mistaken for the old one."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from cordwood.client.kafka import KafkaClient
from cordwood.errors import DataLoss, UnknownTopic
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi
from cordwood.pipeline.source.offsets import encode_offsets, parse_offsets
from cordwood.pipeline.source.options import parse_options
from cordwood.pipeline.source.topic_ids import IDS, ids_of, recreated, with_ids
from cordwood.testing import Broker
from support.lines import ask

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from cordwood.pipeline.route.query import plan_route, prepare_cursor
from cordwood.pipeline.route.source import RouteReader
from cordwood.pipeline.source.source import TopicStreamReader

SCHEMA = StructType([StructField("value", BinaryType())])


class Stream:
    """A streaming query as Spark runs it, with a JSON checkpoint and a new reader per batch."""

    def __init__(self, broker: Broker, road: str, topics: str = "t") -> None:
        self._said = {"subscribe": topics, "startingOffsets": "earliest"}
        roads = {"path": str(broker.data), "kafka.bootstrap.servers": broker.kafka}
        self._said[road] = roads[road]
        self.checkpoint: str | None = None

    def reader(self, **options: str) -> TopicStreamReader:
        return TopicStreamReader(parse_options({**self._said, **options}, streaming=True), SCHEMA)

    def batch(self, limit=None, **options: str) -> list[bytes]:
        """Run one micro-batch and return the values that it read."""
        with closing(_Stopped(self.reader(**options))) as held:
            reader = held.reader
            start = json.loads(self.checkpoint) if self.checkpoint else reader.initialOffset()
            end = json.loads(json.dumps(reader.latestOffset(start, limit or ReadAllAvailable())))
            found = self.read(reader, reader.partitions(start, end))
            self.checkpoint = json.dumps(end)
            return found

    @staticmethod
    def read(reader: TopicStreamReader, splits) -> list[bytes]:
        batches = [batch for split in splits for batch in reader.read(split)]
        return [value for batch in batches for value in batch.column("value").to_pylist()]


class _Stopped:
    """Wrap a reader, so that ``close`` stops it."""

    def __init__(self, reader: TopicStreamReader) -> None:
        self.reader = reader

    def close(self) -> None:
        self.reader.stop()


@pytest.fixture
def broker():
    with Broker(durability="os") as running:
        yield running


@pytest.fixture(params=["path", "kafka.bootstrap.servers"])
def road(request):
    """Read the files directly, or read over Kafka."""
    return request.param


def fill(broker: Broker, topic: str, *values: str) -> list[bytes]:
    for value in values:
        assert ask(broker.control, f"PUT {topic} {value}") == b"OK"
    return [value.encode() for value in values]


def delete(broker: Broker, topic: str) -> None:
    with KafkaClient(broker.kafka) as client:
        client.delete_topic(topic)


def recreate(broker: Broker, *values: str) -> list[bytes]:
    delete(broker, "t")
    return fill(broker, "t", *values)


@pytest.mark.parametrize("count", [1, 3, 5], ids=["shorter", "equal", "longer"])
def test_a_recreated_topic_stops_the_query_with_its_name(broker, road, count):
    """A recreated topic fails the query with ``DataLoss``, whatever its length is."""
    stream = Stream(broker, road)
    fill(broker, "t", "a", "b", "c")
    stream.batch()
    recreate(broker, *"vwxyz"[:count])
    before = stream.checkpoint
    with pytest.raises(DataLoss, match="topic t was deleted and created again"):
        stream.batch()
    assert stream.checkpoint == before


@pytest.mark.parametrize("count", [1, 3, 5], ids=["shorter", "equal", "longer"])
def test_a_recreated_topic_is_read_from_its_beginning_where_loss_is_allowed(broker, road, count):
    """With ``failOnDataLoss`` off, a recreated topic is read once, from its start."""
    fill(broker, "t", "a", "b", "c")
    stream = Stream(broker, road)
    assert stream.batch() == [b"a", b"b", b"c"]
    new = recreate(broker, *"vwxyz"[:count])
    found = [value for _ in range(count) for value in stream.batch(ReadMaxRows(1), **LOSS)]
    assert found == new
    more = fill(broker, "t", "more")
    assert stream.batch(**LOSS) == more
    assert stream.batch() == [], "the new topic is the checkpoint's now"


LOSS = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "1"}


def test_a_deleted_topic_contributes_nothing_where_loss_is_allowed(broker, road, caplog):
    """With ``failOnDataLoss`` off, a deleted topic is skipped.

    If it is created again, it is read from its start.
    """
    fill(broker, "t", "a", "b")
    fill(broker, "u", "one")
    stream = Stream(broker, road, "t,u")
    assert sorted(stream.batch()) == [b"a", b"b", b"one"]
    delete(broker, "t")
    two = fill(broker, "u", "two")
    with pytest.raises(UnknownTopic, match="there is no topic t"):
        stream.batch()
    assert stream.batch(failOnDataLoss="false") == two
    assert "t-0: the partition no longer exists" in caplog.text
    assert stream.batch(failOnDataLoss="false") == []
    back = fill(broker, "t", "back")
    assert stream.batch(failOnDataLoss="false") == back


def test_an_older_checkpoint_without_ids_goes_on(broker, road):
    """A checkpoint without topic ids is accepted, and ids are stored from then on."""
    fill(broker, "t", "a", "b", "c")
    stream = Stream(broker, road)
    stream.checkpoint = json.dumps({"t": {"0": 1}})
    assert stream.batch() == [b"b", b"c"]
    assert list(ids_of(json.loads(stream.checkpoint))) == ["t"]
    recreate(broker, "x")
    with pytest.raises(DataLoss):
        stream.batch()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_recreated_after_planning_gives_no_foreign_records(broker, road, fail):
    """A task that finds another topic id than planned fails, or reads nothing."""
    fill(broker, "t", "a", "b")
    with closing(_Stopped(Stream(broker, road).reader(failOnDataLoss=fail))) as held:
        reader = held.reader
        start = reader.initialOffset()
        splits = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        recreate(broker, "x", "y")
        if fail == "true":
            with pytest.raises(DataLoss, match="topic t was deleted"):
                Stream.read(reader, splits)
        else:
            assert Stream.read(reader, splits) == []


def test_a_batch_that_is_run_again_reads_nothing_of_another_topic(broker, road):
    """A planned batch that runs again after a crash reads nothing of a recreated topic."""
    fill(broker, "t", "a", "b")
    stream = Stream(broker, road)
    with closing(_Stopped(stream.reader())) as held:
        start = held.reader.initialOffset()
        end = held.reader.latestOffset(start, ReadAllAvailable())
    new = recreate(broker, "x", "y")
    with closing(_Stopped(stream.reader())) as held, pytest.raises(DataLoss):
        held.reader.partitions(start, end)
    with closing(_Stopped(stream.reader(failOnDataLoss="false"))) as held:
        assert list(held.reader.partitions(start, end)) == []
    stream.checkpoint = json.dumps(end)
    assert stream.batch(failOnDataLoss="false") == new


def test_the_router_goes_on_at_the_beginning_of_a_recreated_topic(broker):
    """The router continues at the start of a recreated topic, and stores the topic's id."""
    where = BrokerAddress(servers=broker.kafka)
    with closing(BrokerApi(where)) as api:
        job = plan_route(api)
        fill(broker, job.topic, "a", "b", "c")
        prepare_cursor(api, job)
        with closing(_Stopped(RouteReader(job))) as held:
            reader = held.reader
            start = reader.initialOffset()
            assert list(ids_of(start)) == [job.topic]
            start = reader.latestOffset(start, ReadMaxRows(100))
            delete(broker, job.topic)
            fill(broker, job.topic, "x", "y")
            end = reader.latestOffset(start, ReadMaxRows(100))
            (split,) = reader.partitions(start, end)
            assert split.split.range[1:] == (0, 2)


# --- pure functions -----------------------------------------------------------------------------


def test_ids_travel_with_offsets_and_are_none_of_them():
    """Topic ids are stored beside the offsets, under a key that is no valid topic name."""
    offsets = {"t": {"0": 5}}
    encoded = with_ids(offsets, {"t": "id", "other": "x"})
    assert encoded == {IDS: {"t": "id"}, "t": {"0": 5}}
    assert encode_offsets(parse_offsets(encoded)) == offsets
    assert (ids_of(encoded), ids_of(offsets)) == ({"t": "id"}, {})
    assert with_ids(offsets, {}) == offsets


def test_only_what_is_known_on_both_sides_is_compared():
    """Only topics with a known id on both sides are compared."""
    assert recreated({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == ["b"]
