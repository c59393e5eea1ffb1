"""``read_committed`` reads from segment files and from a broker return only committed records."""

from __future__ import annotations

import shutil

import confluent_kafka
import pytest

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.records import encode_batch
from cordwood.client.kafka import KafkaClient
from cordwood.log.format.layout import FileKind
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.source.log_access import open_log
from cordwood.pipeline.source.offsets import Range
from cordwood.pipeline.source.options import parse_options
from cordwood.testing import Broker
from support.batches import records_of
from support.kafka_clients import PATIENCE_S, create_topic

TP = TopicPartition("bank", 0)
LONG = b"x" * 400  # a few of them fill a segment


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os") as running:
        create_topic(running.kafka, TP.topic, segment_bytes=2000)
        yield running


class Writer:
    """A transactional producer that sends one record per request."""

    def __init__(self, broker, name):
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.kafka, "transactional.id": name}
        )
        self.producer.init_transactions(PATIENCE_S)

    def begin(self, *values):
        self.producer.begin_transaction()
        self.write(*values)

    def write(self, *values):
        for value in values:
            self.producer.produce(TP.topic, value)
            assert self.producer.flush(PATIENCE_S) == 0  # stored before commit or abort

    def commit(self):
        self.producer.commit_transaction(PATIENCE_S)

    def abort(self):
        self.producer.abort_transaction(PATIENCE_S)


def play(broker):
    """Interleave two producers' transactions over several segments; leave one open."""
    ada, bob = Writer(broker, "ada"), Writer(broker, "bob")
    ada.begin(b"a1" + LONG, b"a2" + LONG)
    bob.begin(b"b1" + LONG, b"b2" + LONG, b"b3" + LONG)
    ada.abort()
    bob.write(b"b4" + LONG)
    bob.commit()
    ada.begin(b"a3" + LONG)
    ada.commit()
    bob.begin(b"b5" + LONG)
    ada.begin(b"a4" + LONG, b"a5" + LONG, b"a6" + LONG, b"a7" + LONG, b"a8" + LONG)
    bob.abort()
    ada.abort()
    bob.begin(b"b6")
    bob.commit()
    ada.begin(b"a9")
    bob.begin(b"b7")
    bob.commit()  # committed, but behind an open transaction
    return ada


COMMITTED = [b"b1", b"b2", b"b3", b"b4", b"a3", b"b6"]


def read(*, start=None, **options):
    """Return the shortened values that a query with these options reads, and its bounds."""
    names = {"servers": "kafka.bootstrap.servers", "path": "path", "level": "kafka.isolation.level"}
    fields = {names[name]: str(value) for name, value in options.items()}
    parsed = parse_options({"subscribe": TP.topic, **fields}, streaming=False)
    values = []
    with open_log(parsed) as log:
        bounds = log.bounds([TP])[TP]
        for chunk in log.chunks(
            Range(TP, bounds.start if start is None else start, bounds.end), None
        ):
            columns = decode_columns(
                chunk.data,
                start_offset=chunk.start_offset,
                end_offset=bounds.end,
                aborted=chunk.aborted,
            )
            values += [record.value[:2] for record in records_of(columns)]
    return values, bounds


def routing_table(broker):
    return {"path": broker.data}, {"servers": broker.kafka}


def test_files_and_wire_leave_out_what_is_aborted_or_undecided(broker):
    """Aborted and open transactions are skipped, also across segments and producers."""
    open_one = play(broker)
    for way in routing_table(broker):
        values, bounds = read(**way, level="read_committed")
        assert values == COMMITTED
        everything, whole = read(**way)
        assert [value for value in everything if value in {b"a1", b"a9"}] == [b"a1", b"a9"]
        assert bounds.end < whole.end
    open_one.commit()
    for way in routing_table(broker):
        assert read(**way, level="read_committed")[0] == [*COMMITTED, b"a9", b"b7"]


def test_a_range_that_begins_inside_an_aborted_transaction_reads_none_of_it(broker):
    """Reading from any offset returns the tail of the same list of committed records."""
    play(broker)
    for way in routing_table(broker):
        values, bounds = read(**way, level="read_committed")
        left = [read(**way, level="read_committed", start=at)[0] for at in range(bounds.end)]
        assert all(part == values[len(values) - len(part) :] for part in left)
        assert [len(part) for part in left] == sorted(map(len, left), reverse=True)


@pytest.mark.parametrize("lost", ["nothing", "marks", "snapshots"])
def test_without_a_broker_the_files_alone_say_what_is_decided(broker, tmp_path, lost):
    """A copied data directory gives the same result without published offsets or snapshots."""
    play(broker)
    copy = tmp_path / "copy"
    shutil.copytree(broker.data, copy)
    if lost == "marks":
        (copy / str(TP) / "marks").unlink()
    if lost == "snapshots":
        (copy / str(TP) / "marks").unlink()
        for path in (copy / str(TP)).glob(f"*{FileKind.SNAPSHOT.value}"):
            path.unlink()
    assert read(path=copy, level="read_committed")[0] == COMMITTED


def test_a_topic_without_transactions_reads_alike_either_way(broker):
    """Without transactions, ``read_committed`` and the default read the same records."""
    with KafkaClient(broker.kafka) as client:
        client.produce(TP, encode_batch([Record(0, 1, b"k", b"v1"), Record(1, 1, None, b"v2")]))
    for way in routing_table(broker):
        assert read(**way, level="read_committed") == read(**way)
