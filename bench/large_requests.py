"""The largest Kafka requests that a broker accepts: how long each blocks its event loop.

A broker over 10,000 one-partition topics gets requests with as many elements as
``request.elements.max`` allows, for every API with arrays. The longest loop iteration is given in
CPU time of the loop's thread, which other processes do not lengthen. The wall time next to it
includes other processes and the threads that decode and encode. On a virtual machine the CPU time
also includes what the host took from the guest: an empty loop showed single steps of 13 and 69 ms.
Therefore repeatable requests are sent ``REPEATS`` times and the median is given: our own work takes
the same time in each. ``PARTITIONS=1000`` chooses another size, ``ONLY=Metadata`` selects some
requests.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.partitions import ANSWER_S, RunningBroker, broker, build, topic
from bench.rows import Row
from cordwood.address import parse_address
from cordwood.batch.records import encode_batch
from cordwood.client.kafka_connection import ClientConnection
from cordwood.config import MIB, BrokerConfig
from cordwood.model import Record
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

PARTITIONS = int(os.environ.get("PARTITIONS", "10000").split(",")[-1])
ONLY = os.environ.get("ONLY", "")
ELEMENTS = BrokerConfig().request_elements_max - 10
TOPIC = 2  # the resource type of topic settings
COMMIT = "OffsetCommit"
TXN = "bench"
REPEATS = 3

Request = tuple[Any, ...]


def run() -> Iterator[Row]:
    """Send every request to one broker."""
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-") as name:
        data = Path(name) / "data"
        build(data, PARTITIONS)
        with broker(data) as running:
            running.until_open(PARTITIONS)
            yield from measure(running)


def measure(running: RunningBroker) -> Iterator[Row]:
    """Yield the longest loop iteration during each request."""
    address = parse_address(running.addresses["kafka"])
    wire = ClientConnection(address, client_id="bench", timeout_s=ANSWER_S, versions={})
    mine = wire.ask(x.InitProducerIdRequest(TXN, 60_000), x.InitProducerIdResponse)
    reading = large()
    for name, request in (reading | transactional(mine) | destructive()).items():
        if ONLY and ONLY not in name:
            continue
        repeats = REPEATS if name in reading else 1
        turns = [longest_turn(running, wire, request) for _ in range(repeats)]
        cpu_ms, wall_ms, took_ms = (statistics.median(each) for each in zip(*turns, strict=True))
        note = f"{wall_ms:.0f} ms by the clock; answered in {took_ms:.0f} ms"
        if repeats > 1:
            note += f"; at most {max(turns)[0]:.1f} ms of CPU"
        variant = f"{PARTITIONS} partitions"
        yield Row(f"longest turn, {variant}", name, cpu_ms, "ms of CPU", note)


def longest_turn(
    running: RunningBroker, wire: ClientConnection, request: Request
) -> tuple[float, float, float]:
    """Return the longest loop iteration in CPU and wall time, and the time to the answer, in ms."""
    running.stall()
    started = time.perf_counter()
    reply = wire.ask(request, tuple)
    took_s = time.perf_counter() - started
    wall_ms, cpu_ms = running.stall()
    assert reply
    return cpu_ms, wall_ms, took_s * 1e3


def names(count: int) -> list[str]:
    """Return existing topic names, repeated from the start if there are too few."""
    return [topic(number % PARTITIONS) for number in range(count)]


def large() -> dict[str, Request]:
    """Return the read requests by name, with the maximum number of elements."""
    many, pairs = range(ELEMENTS), names(ELEMENTS // 2)
    unknown = [f"no-{number}" for number in many]
    first = topic(0)
    first_part = fe.FetchPartition(0, partition_max_bytes=MIB)
    end_part = fe.FetchPartition(0, fetch_offset=1, partition_max_bytes=MIB)
    return {
        "Metadata, all": m.MetadataRequest(None),
        "Metadata, unknown": m.MetadataRequest(
            [m.MetadataRequestTopic(name=name) for name in unknown], False
        ),
        "Metadata, known": m.MetadataRequest(
            [m.MetadataRequestTopic(name=name) for name in names(ELEMENTS)], False
        ),
        "DescribeTopicPartitions": m.DescribeTopicPartitionsRequest(
            [m.DescribeTopicPartitionsTopic(name) for name in unknown]
        ),
        "ListOffsets": o.ListOffsetsRequest(
            -1, 0, [o.ListOffsetsTopic(name, [o.ListOffsetsPartition(0, -1, -1)]) for name in pairs]
        ),
        "ListOffsets, of one": o.ListOffsetsRequest(
            -1, 0, [o.ListOffsetsTopic(first, [o.ListOffsetsPartition(n, -1, -1) for n in many])]
        ),
        "ListOffsets, by time": o.ListOffsetsRequest(
            -1, 0, [o.ListOffsetsTopic(name, [o.ListOffsetsPartition(0, -1, 1)]) for name in pairs]
        ),
        "OffsetForLeaderEpoch": o.OffsetForLeaderEpochRequest(
            -2, [o.EpochTopic(name, [o.EpochPartition(0, -1, 0)]) for name in pairs]
        ),
        "Fetch": fe.FetchRequest(
            -1, 0, 1, 50 * MIB, 0,
            topics=[fe.FetchTopic(name, partitions=[first_part]) for name in pairs],
        ),
        "Fetch, nothing new": fe.FetchRequest(
            -1, 0, 1, 50 * MIB, 0,
            topics=[fe.FetchTopic(name, partitions=[end_part]) for name in pairs],
        ),
        COMMIT: c.OffsetCommitRequest(
            "g",
            topics=[
                c.OffsetCommitTopic(name, partitions=[c.OffsetCommitPartition(0, 0)])
                for name in pairs
            ],
        ),
        "OffsetCommit, of one": c.OffsetCommitRequest(
            "g",
            topics=[
                c.OffsetCommitTopic(
                    first, partitions=[c.OffsetCommitPartition(n, 0) for n in many]
                )
            ],
        ),
        "OffsetFetch": c.OffsetFetchRequest(
            groups=[
                c.OffsetFetchGroup(
                    "g", topics=[c.OffsetFetchGroupTopic(name, partitions=[0]) for name in pairs]
                )
            ]
        ),
        "OffsetFetch, of one": c.OffsetFetchRequest(
            groups=[
                c.OffsetFetchGroup("g", topics=[c.OffsetFetchGroupTopic(first, partitions=many)])
            ],
            require_stable=True,
        ),
        "OffsetFetch, of groups": c.OffsetFetchRequest(
            groups=[c.OffsetFetchGroup(name) for name in ["g", *unknown[1:]]]
        ),
        "OffsetDelete": c.OffsetDeleteRequest(
            "h", [c.OffsetDeleteTopic(name, [c.OffsetDeletePartition(0)]) for name in pairs]
        ),
        "FindCoordinator": g.FindCoordinatorRequest(coordinator_keys=unknown),
        "DescribeGroups": g.DescribeGroupsRequest(["g", *unknown[1:]]),
        "ListGroups": g.ListGroupsRequest([]),
        "DeleteGroups": g.DeleteGroupsRequest(unknown),
        "DescribeConfigs": f.DescribeConfigsRequest(
            [f.DescribeConfigsResource(TOPIC, name, None) for name in names(ELEMENTS)]
        ),
        "DescribeConfigs, of one": f.DescribeConfigsRequest(
            [f.DescribeConfigsResource(TOPIC, first, unknown[1:])]
        ),
        "IncrementalAlterConfigs": f.IncrementalAlterConfigsRequest(
            [
                f.ConfigChanges(TOPIC, name, [f.ConfigChange("retention.ms", 0, "1000")])
                for name in names(PARTITIONS)
            ],
            validate_only=True,
        ),
        "DescribeLogDirs, all": t.DescribeLogDirsRequest(None),
        "DescribeLogDirs": t.DescribeLogDirsRequest(
            [TopicPartitions(name, [0]) for name in pairs]
        ),
        "ElectLeaders": p.ElectLeadersRequest(0, [TopicPartitions(name, [0]) for name in pairs]),
        "AlterPartitionReassignments": p.AlterPartitionReassignmentsRequest(
            topics=[p.ReassignTopic(name, [p.ReassignPartition(0, None)]) for name in pairs]
        ),
        "DescribeProducers": x.DescribeProducersRequest(
            [TopicPartitions(name, [0]) for name in pairs]
        ),
        "DescribeTransactions": x.DescribeTransactionsRequest(unknown),
        "CreateTopics, checked": t.CreateTopicsRequest(
            [t.CreateTopic(name, 1, 1) for name in unknown[:10_000]], 60_000, True
        ),
        "CreateTopics, too many": t.CreateTopicsRequest(
            [t.CreateTopic(name, 1, 1) for name in unknown], 60_000, True
        ),
        "CreateTopics, repeated": t.CreateTopicsRequest(
            [t.CreateTopic("twice", 1, 1) for _ in range(10_000)], 60_000, False
        ),
        "CreatePartitions, checked": t.CreatePartitionsRequest(
            [t.GrowTopic(name, 2, None) for name in names(PARTITIONS)], 60_000, True
        ),
    }  # fmt: skip


def transactional(mine: x.InitProducerIdResponse) -> dict[str, Request]:
    """Return requests of one transaction over every partition, with the offsets of a group."""
    every = names(PARTITIONS)
    who = (TXN, mine.producer_id, mine.producer_epoch)
    offsets = [c.TxnOffsetTopic(name, [c.TxnOffsetPartition(0, 0)]) for name in every]
    return {
        "AddPartitionsToTxn": x.AddPartitionsToTxnRequest(
            *who, [TopicPartitions(name, [0]) for name in every]
        ),
        "AddPartitionsToTxn, unknown": x.AddPartitionsToTxnRequest(
            *who, [TopicPartitions("no", range(ELEMENTS))]
        ),
        "AddOffsetsToTxn": x.AddOffsetsToTxnRequest(*who, "tg"),
        "TxnOffsetCommit": c.TxnOffsetCommitRequest(
            TXN, "tg", mine.producer_id, mine.producer_epoch, topics=offsets
        ),
        "EndTxn": x.EndTxnRequest(*who, True),
    }


def destructive() -> dict[str, Request]:
    """Return the write requests; the last one deletes the created topics."""
    batch = encode_batch([Record(0, 1, b"k", b"v")])
    made = [f"made-{number}" for number in range(1_000)]
    return {
        "Produce": pr.ProduceRequest(
            None, -1, 60_000,
            [
                pr.ProduceTopic(name, partitions=[pr.ProducePartition(0, batch)])
                for name in names(PARTITIONS)
            ],
        ),
        "Produce, bad acks": pr.ProduceRequest(
            None, 7, 60_000,
            [
                pr.ProduceTopic(name, partitions=[pr.ProducePartition(0, batch)])
                for name in names(ELEMENTS // 2)
            ],
        ),
        "Produce, of empty topics": pr.ProduceRequest(
            None, -1, 60_000, [pr.ProduceTopic(name, partitions=[]) for name in names(ELEMENTS)]
        ),
        "DeleteRecords": t.DeleteRecordsRequest(
            [t.DeleteRecordsTopic(name, [t.DeleteRecordsPartition(0, 1)]) for name in names(2_000)],
            60_000,
        ),
        "CreateTopics": t.CreateTopicsRequest(
            [t.CreateTopic(name, 1, 1) for name in made], 60_000, False
        ),
        "DeleteTopics, unknown": t.DeleteTopicsRequest(
            [t.DeleteTopic(f"no-{number}") for number in range(ELEMENTS)]
        ),
        "DeleteTopics": t.DeleteTopicsRequest([t.DeleteTopic(name) for name in made]),
    }  # fmt: skip
