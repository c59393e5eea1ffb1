"""Ending a transaction by hand: one that hangs, and one that its coordinator still knows."""

from __future__ import annotations

import pytest

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from support.kafka_services import KafkaServices

PRODUCER, EPOCH = 4711, 3


async def end(services, version=2, *, producer=PRODUCER, epoch=EPOCH, topic="t", **how):
    """Write a marker to partition 0 and return its code."""
    how = {"committed": False, "coordinator_epoch": 0} | how
    marker = TxnMarker(producer, epoch, topics=[TopicPartitions(topic, [0])], **how)
    (written,) = (await services.ask(WriteTxnMarkersRequest([marker]), version)).markers
    assert written.producer_id == producer
    ((marked,),) = (each.partitions for each in written.topics)
    return marked.error_code


async def hang(services, epoch=EPOCH):
    """Leave a transaction open in t-0 that the coordinator knows nothing of."""
    topic = services.topics.all().get("t") or await services.create("t")
    data = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": 0}
    await services.append_transactional(topic.partition(0), [b"v"], **data)
    return topic.partition(0)


async def begin(services):
    """Open a transaction on two partitions; returns its producer id and epoch."""
    await services.create("t", 2)
    made = await services.ask(InitProducerIdRequest("tx", 60_000))
    who = made.producer_id, made.producer_epoch
    await services.ask(AddPartitionsToTxnRequest("tx", *who, [TopicPartitions("t", [0, 1])]))
    for number in (0, 1):
        how = {"producer_id": who[0], "producer_epoch": who[1], "base_sequence": 0}
        answer = await services.write("t", [b"v"], partition=number, transactional_id="tx", **how)
        assert answer.error_code == Code.NONE
    return who


@pytest.mark.parametrize("version", [1, 2])
async def test_a_hanging_transaction_is_aborted(tmp_path, version):
    """The marker is appended, so that readers of committed records get past the transaction."""
    async with KafkaServices(tmp_path) as services:
        partition = await hang(services)
        assert partition.last_stable_offset == 0
        assert await end(services, version) == Code.NONE
        assert partition.last_stable_offset == partition.high_watermark == 2


async def test_a_marker_of_an_older_producer_or_coordinator_is_refused(tmp_path):
    """The epochs that the partition knows may not go back."""
    async with KafkaServices(tmp_path) as services:
        partition = await hang(services)
        assert await end(services, epoch=EPOCH - 1) == Code.INVALID_PRODUCER_EPOCH
        assert partition.last_stable_offset == 0
        assert await end(services) == Code.NONE
        assert await end(services, coordinator_epoch=-1) == Code.INVALID_PRODUCER_EPOCH


async def test_a_marker_cannot_lock_the_coordinator_out(tmp_path):
    """The epoch that a client claims is not kept if it is higher than the coordinator's own."""
    async with KafkaServices(tmp_path) as services:
        await hang(services)
        assert await end(services, coordinator_epoch=9) == Code.NONE
        assert await end(services, coordinator_epoch=0) == Code.NONE


async def test_markers_need_an_existing_partition(tmp_path):
    """A partition that does not exist is reported, and not created."""
    async with KafkaServices(tmp_path) as services:
        assert await end(services, topic="none") == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert not services.topics.all()


async def test_a_known_transaction_is_aborted_in_all_its_partitions(tmp_path):
    """A marker for one partition ends the whole transaction; nothing of it can be committed."""
    async with KafkaServices(tmp_path) as services:
        producer, epoch = await begin(services)
        assert await end(services, producer=producer, epoch=epoch) == Code.NONE
        for number in (0, 1):
            partition = services.topics.get("t").partition(number)
            assert partition.last_stable_offset == partition.high_watermark == 2
        (known,) = (await services.ask(DescribeTransactionsRequest(["tx"]))).transactions
        assert known.state == "CompleteAbort"
        commit = await services.ask(EndTxnRequest("tx", producer, epoch, True))
        assert commit.error_code == Code.INVALID_TXN_STATE


async def test_a_known_transaction_is_committed_by_its_producer_only(tmp_path):
    """A marker that commits one partition of a known transaction is refused."""
    async with KafkaServices(tmp_path) as services:
        producer, epoch = await begin(services)
        how = {"producer": producer, "epoch": epoch, "committed": True}
        assert await end(services, **how) == Code.INVALID_TXN_STATE
        assert services.topics.get("t").partition(0).last_stable_offset == 0
