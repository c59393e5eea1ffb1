"""Routing of whole chunks gives the same result as routing each record alone."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.batch.column_decoder import decode_columns
from cordwood.batch.header import check_batches
from cordwood.batch.kernels import keys as key_kernels
from cordwood.batch.kernels import llvm_intrinsics
from cordwood.batch.kernels import routes as route_kernels
from cordwood.batch.records import decode_batch, encode_batch
from cordwood.decide.deadletters import headers_for_record, parse_cause
from cordwood.decide.routing import Bindings, Routed, route
from cordwood.model import Header, Record, TopicPartition
from cordwood.pipeline.route.executor import RecordRouter, RoutingTable
from cordwood.pipeline.runtime.broker_api import BrokerAddress, TargetTopic
from cordwood.pipeline.runtime.staging import StagingTarget, StagingWriter
from cordwood.pipeline.runtime.targets import Targets

TP = TopicPartition("append", 3)
KEYS = st.sampled_from(
    [
        *(None, b"", b"jobs.a", b"jobs.b", b"jobs", b"test.x", b".x", b"append.x", b"a b.c"),
        *(b"\xff.x", "jöbs.a".encode(), b"x\xff", b"special.one", b"special.two"),
    ]
)
HEADERS = st.lists(st.builds(Header, st.sampled_from("hk"), st.none() | st.binary(max_size=3)))
ROWS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=4), HEADERS), min_size=1)
BINDINGS = Bindings(
    exact={"special.one": "one"}, prefix={"jobs": "work", "special": "rest"}, source="append"
)


def targets(partitions=1, bytes_max=1 << 20):
    """Return the topic ``work`` as the broker describes it."""
    return Targets(
        {"work": TargetTopic("id", partitions, bytes_max)}, dead_letter_topic="dead_letter"
    )


class Kept(StagingWriter):
    """A staging writer that keeps the batches instead of writing files."""

    def __init__(self):
        target = StagingTarget(BrokerAddress(), "nowhere")
        super().__init__(target, "job", Targets(dead_letter_topic="dead_letter"))
        self.rows = {}

    def put(self, topic, partition, data):
        headers = check_batches(data, len(data))  # the broker runs the same check
        assert [header.base_offset for header in headers] == [
            sum(header.count for header in headers[:at]) for at in range(len(headers))
        ]
        position = 0
        for header in headers:
            found = list(decode_batch(data, position))
            assert header.max_timestamp_ms == max(record.timestamp_ms for record in found)
            self.rows.setdefault((topic, partition), []).extend(found)
            position += header.size_bytes


def expected(records):
    """Route each record alone with the pure function ``route``."""
    found = {}
    for record in records:
        verdict = route(record.key, BINDINGS)
        at = record.offset
        if isinstance(verdict, Routed):
            topic = verdict.topic
            extra = {"src.topic": TP.topic, "src.partition": TP.partition, "src.offset": at}
            headers = tuple(Header(name, str(text).encode()) for name, text in extra.items())
        else:
            topic = "dead_letter"
            headers = headers_for_record(verdict.reason, verdict.detail, *TP, at)
        kept = (record.timestamp_ms, record.key, record.value, record.headers + headers)
        found.setdefault(topic, []).append(kept)
    return found


@given(ROWS, st.integers(0, 10**12))
def test_a_chunk_goes_where_its_records_would_go_one_by_one(rows, first):
    """A chunk is routed as its records would be one by one, with source headers added.

    It is routed twice, because a task caches its decisions.
    """
    records = [
        Record(first + i, 1000 + i, key, value, tuple(headers))
        for i, (key, value, headers) in enumerate(rows)
    ]
    columns = decode_columns(encode_batch(records, base_offset=first))
    kept = Kept()
    router = RecordRouter(RoutingTable(BINDINGS, "dead_letter", Targets()), kept)
    router.route(TP, columns)
    router.route(TP, columns)
    found = {
        topic: [(r.timestamp_ms, r.key, r.value, r.headers) for r in routed]
        for (topic, _), routed in kept.rows.items()
    }
    assert found == {topic: kept * 2 for topic, kept in expected(records).items()}


@given(ROWS)
def test_a_route_of_several_partitions_keeps_a_key_in_one(rows):
    """In a topic with several partitions, a key has one partition, which keeps the record order."""
    records = [Record(i, i, key, value) for i, (key, value, _) in enumerate(rows)]
    kept = Kept()
    RecordRouter(RoutingTable(BINDINGS, "dead_letter", targets(4)), kept).route(
        TP, decode_columns(encode_batch(records))
    )
    homes = {}
    for (topic, partition), routed in kept.rows.items():
        assert partition < (4 if topic == "work" else 1)
        times = [record.timestamp_ms for record in routed]
        assert times == sorted(times)
        for record in routed:
            assert homes.setdefault((topic, record.key), partition) == partition


@pytest.mark.parametrize("batch_bytes", [1, 100, 10_000])
def test_routed_batches_are_cut_and_numbered_on(batch_bytes):
    """For any batch size, every record arrives once, unchanged, with consecutive offsets."""
    records = [
        Record(
            10**18 + i, i * 7 % 50, b"jobs.%d" % i, b"v" * (i % 90), (Header("h", None),) * (i % 3)
        )
        for i in range(300)
    ]
    kept = Kept()
    routes = RoutingTable(BINDINGS, "dead_letter", targets(3))
    router = RecordRouter(routes, kept, batch_bytes=batch_bytes)
    router.route(TP, decode_columns(encode_batch(records, base_offset=10**18)))
    found = sorted((r.headers[-1].value, r) for rows in kept.rows.values() for r in rows)
    assert [int(offset) for offset, _ in found] == [record.offset for record in records]
    assert [(r.timestamp_ms, r.key, r.value, r.headers[:-3]) for _, r in found] == [
        (r.timestamp_ms, r.key, r.value, r.headers) for r in records
    ]


@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=40),
    st.lists(st.integers(0, 60), max_size=3),
    st.integers(200, 900),
)
def test_no_routed_batch_is_larger_than_its_topic_takes(sizes, header_sizes, bytes_max):
    """No batch exceeds ``max.message.bytes`` of its topic.

    A record that does not fit alone becomes a dead letter, and the others arrive in order.
    """
    headers = tuple(Header("h", b"x" * size) for size in header_sizes)
    records = [Record(i, i, b"jobs.x", b"v" * size, headers) for i, size in enumerate(sizes)]
    kept, put = Kept(), []
    kept_put = kept.put
    kept.put = lambda topic, partition, data: (
        put.append((topic, bytes(data))),
        kept_put(topic, partition, data),
    )
    router = RecordRouter(RoutingTable(BINDINGS, "dead_letter", targets(1, bytes_max)), kept)
    router.route(TP, decode_columns(encode_batch(records)))
    for topic, data in put:
        if topic == "work":
            assert all(header.size_bytes <= bytes_max for header in check_batches(data, 1 << 20))
    routed = [len(record.value) for record in kept.rows.get(("work", 0), [])]
    dead = kept.rows.get(("dead_letter", 0), [])
    assert sorted(routed + [len(record.value) for record in dead]) == sorted(sizes)
    assert routed == [size for size in sizes if size in set(routed)]
    assert min((len(r.value) for r in dead), default=1 << 20) > max(routed, default=-1)
    assert all(parse_cause(record.headers).reason == "too_large" for record in dead)


@pytest.mark.parametrize("module", [key_kernels, route_kernels])
def test_kernels_state_the_digest_of_what_they_are_made_of(module):
    """The kernels record the digest of llvm_intrinsics.py, so that numba's cache is invalidated."""
    digest = sha256(Path(llvm_intrinsics.__file__).read_bytes()).hexdigest()[:16]
    assert digest == module.INTRINSICS_DIGEST, "set MACHINE_DIGEST to this"
