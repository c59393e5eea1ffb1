"""Requests with thousands of elements yield to other requests and have bounded results."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from cordwood.batch.records import encode_batch
from cordwood.broker.kafka import dispatcher as service_module
from cordwood.broker.kafka.admin import KafkaAdmin
from cordwood.broker.kafka.commits import STEP_OFFSETS
from cordwood.broker.kafka.dispatcher import RequestDispatcher
from cordwood.broker.kafka.fetch import WATCHED_MAX
from cordwood.broker.kafka.metadata import CREATED_MAX
from cordwood.broker.session import Session
from cordwood.broker.time_slices import TURN_ITEMS, RequestSlices, is_large
from cordwood.codes import Code
from cordwood.errors import TooManyElements
from cordwood.model import Record
from cordwood.protocol.kafka.frames import encode_request, parse_request
from cordwood.protocol.kafka.messages import commits as c
from cordwood.protocol.kafka.messages import configs as f
from cordwood.protocol.kafka.messages import fetch as fe
from cordwood.protocol.kafka.messages import groups as g
from cordwood.protocol.kafka.messages import metadata as m
from cordwood.protocol.kafka.messages import offsets as o
from cordwood.protocol.kafka.messages import placement as p
from cordwood.protocol.kafka.messages import produce as pr
from cordwood.protocol.kafka.messages import topics as t
from cordwood.protocol.kafka.messages import transactions as x
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from support.kafka_services import SESSION, KafkaServices
from support.loop_turns import counted_turns

MANY = 4_000
WIDE = 100  # partitions that exist; the others do not
NUMBERS = list(range(MANY))
NAMES = [f"no-{n}" for n in NUMBERS]
BATCH = encode_batch([Record(0, 1, b"k", b"v")])

PRODUCED = [pr.ProducePartition(n, BATCH) for n in NUMBERS]
LARGE = {
    "Produce": pr.ProduceRequest(
        None, -1, 1000, [pr.ProduceTopic("t", partitions=PRODUCED)]
    ),
    "Fetch": fe.FetchRequest(
        -1, 0, 1, 1 << 20, 0,
        topics=[fe.FetchTopic("t", partitions=[fe.FetchPartition(n, 0) for n in NUMBERS])],
    ),
    "ListOffsets": o.ListOffsetsRequest(
        -1, 0, [o.ListOffsetsTopic("t", [o.ListOffsetsPartition(n) for n in NUMBERS])]
    ),
    "ListOffsets of topics": o.ListOffsetsRequest(
        -1, 0, [o.ListOffsetsTopic(name, []) for name in NAMES]
    ),
    "OffsetForLeaderEpoch": o.OffsetForLeaderEpochRequest(
        -2, [o.EpochTopic("t", [o.EpochPartition(n, -1, 0) for n in NUMBERS])]
    ),
    "Metadata": m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in NAMES], False),
    "Metadata of everything": m.MetadataRequest(None),
    "DescribeTopicPartitions": m.DescribeTopicPartitionsRequest(
        [m.DescribeTopicPartitionsTopic(name) for name in NAMES]
    ),
    "OffsetCommit": c.OffsetCommitRequest(
        "g", topics=[c.OffsetCommitTopic(
        "t", partitions=[c.OffsetCommitPartition(n, 0) for n in NUMBERS])]
    ),
    "OffsetFetch": c.OffsetFetchRequest(
        groups=[c.OffsetFetchGroup("g", topics=[c.OffsetFetchGroupTopic("t", partitions=NUMBERS)])]
    ),
    "OffsetDelete": c.OffsetDeleteRequest(
        "g", [c.OffsetDeleteTopic("t", [c.OffsetDeletePartition(n) for n in NUMBERS])]
    ),
    "FindCoordinator": g.FindCoordinatorRequest(coordinator_keys=NAMES),
    "DescribeGroups": g.DescribeGroupsRequest(NAMES),
    "DescribeConfigs": f.DescribeConfigsRequest(
        [f.DescribeConfigsResource(2, name, None) for name in NAMES]
    ),
    "ElectLeaders": p.ElectLeadersRequest(0, [TopicPartitions("t", NUMBERS)]),
    "AlterPartitionReassignments": p.AlterPartitionReassignmentsRequest(
        topics=[p.ReassignTopic("t", [p.ReassignPartition(n, [1]) for n in NUMBERS])]
    ),
    "CreatePartitions": t.CreatePartitionsRequest(
        [t.GrowTopic(name, 2, None) for name in NAMES], 1000, True
    ),
    "DeleteTopics": t.DeleteTopicsRequest([t.DeleteTopic(name) for name in NAMES]),
    "DeleteRecords": t.DeleteRecordsRequest(
        [t.DeleteRecordsTopic("no", [t.DeleteRecordsPartition(n, 0) for n in NUMBERS])], 1000
    ),
    "DescribeLogDirs": t.DescribeLogDirsRequest(None),
    "DescribeTransactions": x.DescribeTransactionsRequest(NAMES),
    "Produce of empty topics": pr.ProduceRequest(
        None, -1, 1000, [pr.ProduceTopic(name, partitions=[]) for name in NAMES]
    ),
    "Produce with bad acks": pr.ProduceRequest(
        None, 7, 1000, [pr.ProduceTopic("t", partitions=PRODUCED)]
    ),
    "OffsetFetch of groups": c.OffsetFetchRequest(
        groups=[c.OffsetFetchGroup(name) for name in NAMES]
    ),
    "DeleteGroups": g.DeleteGroupsRequest(NAMES),
    "CreateTopics": t.CreateTopicsRequest(
        [t.CreateTopic(name, 1, 1) for name in NAMES], 1000, True
    ),
    "TxnOffsetCommit": c.TxnOffsetCommitRequest(
        "tx", "g", 1, 0,
        topics=[c.TxnOffsetTopic("no", [c.TxnOffsetPartition(n, 0) for n in NUMBERS])],
    ),
    "AddPartitionsToTxn": x.AddPartitionsToTxnRequest("tx", 1, 0, [TopicPartitions("no", NUMBERS)]),
}  # fmt: skip
VERSIONS = {"Metadata": 9, "DescribeTopicPartitions": 0}
BY_WHAT_THERE_IS = {"Metadata of everything", "DescribeLogDirs"}  # cost depends on existing topics


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A data directory with one topic of many partitions, created once."""
    path = tmp_path_factory.mktemp("wide")

    async def make():
        async with KafkaServices(path) as services:
            await services.create("t", WIDE)

    asyncio.run(make())
    return path


async def test_no_large_request_keeps_the_loop_to_itself(wide):
    """Every large request yields to the event loop after a few hundred elements."""
    async with KafkaServices(wide) as services:
        loop = asyncio.get_running_loop()
        turns: list[float] = []

        def tick() -> None:
            turns.append(time.thread_time())
            handles[0] = loop.call_soon(tick)

        handles = [loop.call_soon(tick)]
        for name, request in LARGE.items():
            api = name.split()[0]
            turns[:] = [time.thread_time()]
            reply = await services.handlers[api](request, VERSIONS.get(api, 8), SESSION)
            assert reply is not None, name
            gaps = [after - before for before, after in pairwise(turns)]
            longest_ms = max(gaps, default=0.0) * 1000
            print(f"{name}: {len(gaps)} turns, the longest took {longest_ms:.1f} ms of CPU")
            if name not in BY_WHAT_THERE_IS:
                assert len(gaps) >= MANY / TURN_ITEMS / 2, name
        handles[0].cancel()


def test_a_reply_is_large_however_deep_its_elements_are():
    """Nested elements count, so a group with one topic of many partitions is a large reply."""
    fetched = [c.FetchedOffset(n, 0) for n in NUMBERS]
    groups = [c.FetchedOffsetGroup("g", [c.FetchedGroupTopic("t", partitions=fetched)])]
    assert is_large(c.OffsetFetchResponse(groups=groups))
    assert not is_large(c.OffsetFetchResponse(groups=groups[:0]))


async def test_names_are_sorted_in_turns():
    """Sorting yields to the event loop and returns all names in order."""
    async with counted_turns() as turns:
        assert await RequestSlices().sort(NAMES[::-1]) == sorted(NAMES)
    assert turns.count >= MANY / TURN_ITEMS
    assert await RequestSlices().sort([]) == []


async def test_one_request_creates_a_bounded_number_of_topics(tmp_path):
    """A request above the limit creates no topic; its error suggests splitting the request."""
    async with KafkaServices(tmp_path) as services:
        admin = KafkaAdmin(
            services.settings, services.store, services.topics, services.cluster, created_max=3
        )
        wanted = [t.CreateTopic(f"n{n}", 1, 1) for n in range(4)]
        refused = await admin.create_topics(t.CreateTopicsRequest(wanted, 1000, False), 7, SESSION)
        assert {each.error_code for each in refused.topics} == {Code.POLICY_VIOLATION}
        assert "split the request" in refused.topics[0].error_message
        few = t.CreateTopicsRequest(wanted[:3], 1000, False)
        made = await admin.create_topics(few, 7, SESSION)
        assert {each.error_code for each in made.topics} == {Code.NONE}


async def test_a_topic_named_again_and_again_is_answered_once(tmp_path):
    """Repeated names are answered once, so a small request cannot cause a large reply."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 3)
        named = [m.MetadataRequestTopic(name="t")] * 1_000
        assert len((await services.ask(m.MetadataRequest(named))).topics) == 1
        resources = [f.DescribeConfigsResource(2, "t", None)] * 1_000
        assert len((await services.ask(f.DescribeConfigsRequest(resources))).results) == 1
        described = await services.ask(g.DescribeGroupsRequest(["g"] * 1_000))
        assert len(described.groups) == 1


async def test_one_metadata_request_creates_a_share_of_topics(tmp_path):
    """The remaining topics get a retriable code and are created by the next request."""
    async with KafkaServices(tmp_path) as services:
        named = [m.MetadataRequestTopic(name=f"n{i}") for i in range(CREATED_MAX + 7)]
        named.append(m.MetadataRequestTopic(name="no topic's name"))
        first = (await services.ask(m.MetadataRequest(named))).topics
        codes = [topic.error_code for topic in first]
        again = Code.LEADER_NOT_AVAILABLE
        assert codes == [Code.NONE] * CREATED_MAX + [again] * 7 + [Code.INVALID_TOPIC_EXCEPTION]
        assert len(services.topics.all()) == CREATED_MAX
        second = (await services.ask(m.MetadataRequest(named[:-1]))).topics
        assert {topic.error_code for topic in second} == {Code.NONE}


async def test_pages_of_partitions_lead_through_all_of_them(wide):
    """A page has at most the requested number of partitions and a cursor to the next page."""
    async with KafkaServices(wide) as services:
        found, cursor = [], None
        while True:
            page = await services.ask(m.DescribeTopicPartitionsRequest([], 30, cursor))
            (topic,) = page.topics
            assert len(topic.partitions) <= 30
            found += [part.partition for part in topic.partitions]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == NUMBERS[:WIDE]


async def test_a_wide_fetch_waits_a_little_and_answers_for_every_partition(wide):
    """A fetch of more than WATCHED_MAX partitions is not woken by appends; it reads again once."""
    wanted = WATCHED_MAX + 1
    parts = [fe.FetchPartition(n % WIDE, partition_max_bytes=1 << 20) for n in range(wanted)]
    request = fe.FetchRequest(
        -1, 60_000, 1, 1 << 20, 0, topics=[fe.FetchTopic("t", partitions=parts)]
    )
    async with KafkaServices(wide) as services:
        reply = await services.ask(request, 11)
        assert len(reply.topics[0].partitions) == wanted


async def test_commits_in_steps_move_every_cursor(wide):
    """A commit of thousands of offsets is processed in several steps and gets one reply."""
    async with KafkaServices(wide) as services:
        offsets = [c.OffsetCommitPartition(n % WIDE, 0) for n in range(STEP_OFFSETS + WIDE)]
        request = c.OffsetCommitRequest("g", topics=[c.OffsetCommitTopic("t", partitions=offsets)])
        reply = await services.ask(request)
        assert {part.error_code for part in reply.topics[0].partitions} == {Code.NONE}
        assert len(reply.topics[0].partitions) == len(offsets)
        fetched = await services.ask(LARGE["OffsetFetch"])
        found = [part.offset for part in fetched.groups[0].topics[0].partitions]
        assert found == [0] * WIDE + [-1] * (MANY - WIDE)


def framed(message, version):
    return parse_request(b"".join(encode_request(message, version, 1, "c"))[4:])


async def test_a_request_is_decoded_beside_the_loop_when_it_is_large(wide, monkeypatch):
    """A thread decodes it. A request above the element limit or a large JoinGroup is refused."""
    session = Session(listener="kafka", peer="peer", host="host", port=1)
    decoded = []
    decode_request = service_module.decode_request

    def noted(request, elements_max):
        decoded.append(elements_max)
        return decode_request(request, elements_max)

    monkeypatch.setattr(service_module, "decode_request", noted)
    async with KafkaServices(wide) as services:
        service = RequestDispatcher(
            services.writer, services.produce_service, services.handlers, MANY + 1
        )
        reply = await service.answer(framed(LARGE["ListOffsets"], 5), session)
        assert len(reply.topics[0].partitions) == MANY
        assert is_large(reply)
        assert decoded == [service_module.LOOP_ELEMENTS, MANY + 1]
        too_many = o.ListOffsetsRequest(
            -1, 0, [o.ListOffsetsTopic("t", [o.ListOffsetsPartition(n) for n in [*NUMBERS, 0]])]
        )
        with pytest.raises(TooManyElements):
            await service.answer(framed(too_many, 5), session)
        crowd = g.JoinGroupRequest(
            "g", 10_000, protocols=[g.JoinGroupProtocol(f"p{n}", b"") for n in range(3_000)]
        )
        with pytest.raises(TooManyElements):
            await service.answer(framed(crowd, 5), session)
