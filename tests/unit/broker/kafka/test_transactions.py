"""Transactions over the Kafka protocol: ids, epochs, markers, offsets, and crash recovery."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.batch.records import decode_committed
from cordwood.codes import Code
from cordwood.errors import DiskFull, UnavailableError
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import ReaderPartition
from cordwood.metadata.sqlite import SqliteStore
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.commits import (
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
)
from cordwood.protocol.kafka.messages.partitions import TopicPartitions
from cordwood.protocol.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from support.clock import ManualClock
from support.kafka_services import KafkaServices

MINUTE_MS = 60_000


class Producer:
    """A transactional producer that sends its requests to the broker's services."""

    def __init__(self, services, name="tx"):
        self.services, self.name = services, name
        self.sequences = {}

    async def init(self, **how):
        reply = await self.services.ask(InitProducerIdRequest(self.name, MINUTE_MS, **how))
        self.id, self.epoch = reply.producer_id, reply.producer_epoch
        return reply.error_code

    async def add(self, *numbers, topic="t"):
        reply = await self.services.ask(
            AddPartitionsToTxnRequest(
                self.name, self.id, self.epoch, [TopicPartitions(topic, list(numbers))]
            )
        )
        return [part.error_code for topic in reply.topics for part in topic.partitions]

    async def write(self, *values, partition=0, topic="t"):
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        return await self.services.write(
            topic,
            values,
            partition=partition,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )

    async def add_offsets(self, group="g"):
        reply = await self.services.ask(
            AddOffsetsToTxnRequest(self.name, self.id, self.epoch, group)
        )
        return reply.error_code

    async def stage(self, offset, group="g", **who):
        topics = [TxnOffsetTopic("t", [TxnOffsetPartition(0, offset)])]
        reply = await self.services.ask(
            TxnOffsetCommitRequest(self.name, group, self.id, self.epoch, topics=topics, **who)
        )
        return reply.topics[0].partitions[0].error_code

    async def end(self, *, commit):
        reply = await self.services.ask(EndTxnRequest(self.name, self.id, self.epoch, commit))
        return reply.error_code


async def begun(services, *values):
    """Return a producer with an open transaction on t-0."""
    producer = Producer(services)
    assert await producer.init() == Code.NONE
    assert await producer.add(0) == [Code.NONE]
    if values:
        assert (await producer.write(*values)).error_code == Code.NONE
    return producer


async def state_of(services, name="tx"):
    (found,) = (await services.ask(DescribeTransactionsRequest([name]))).transactions
    return found.state


async def test_an_idempotent_producer_gets_an_id_of_its_own(tmp_path):
    """Each producer gets epoch 0 and a new id, also after a restart."""
    request = InitProducerIdRequest(None, MINUTE_MS)
    seen = []
    for _ in range(2):
        async with KafkaServices(tmp_path) as services:
            for version in range(6):
                reply = await services.ask(request, version)
                assert (reply.error_code, reply.producer_epoch) == (0, 0)
                seen.append(reply.producer_id)
    assert len(set(seen)) == len(seen)


async def test_a_transactional_id_needs_a_name_and_a_timeout_in_bounds(tmp_path):
    """An empty id and a timeout above transaction.max.timeout.ms are refused."""
    async with KafkaServices(tmp_path, transaction_max_timeout_ms=1000) as services:
        named = await services.ask(InitProducerIdRequest("tx", 1001))
        assert named.error_code == Code.INVALID_TRANSACTION_TIMEOUT
        empty = await services.ask(InitProducerIdRequest("", 1000))
        assert empty.error_code == Code.INVALID_REQUEST


async def test_a_committed_transaction_can_be_read_when_the_end_is_answered(tmp_path):
    """The last stable offset is its start while it is open, and past its marker afterwards."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = await begun(services, b"a", b"b")
        (partition,) = services.store.partitions("t")
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 2)
        assert await producer.end(commit=True) == Code.NONE
        assert partition.last_stable_offset == partition.high_watermark == 3
        assert not partition.aborted(0, 3)
        assert await state_of(services) == "CompleteCommit"


async def test_an_aborted_transaction_is_named_to_readers(tmp_path):
    """Its range is in the aborted list, and the producer can start the next transaction."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = await begun(services, b"a")
        assert await producer.end(commit=False) == Code.NONE
        (partition,) = services.store.partitions("t")
        (aborted,) = partition.aborted(0, 2)
        assert (aborted.producer_id, aborted.first_offset) == (producer.id, 0)
        assert await producer.add(0) == [Code.NONE]
        assert (await producer.write(b"b")).error_code == Code.NONE
        assert await producer.end(commit=True) == Code.NONE
        values = [record.value for record in decode_committed(partition.read(0, 10_000).data)]
        assert values == [b"a", b"b"]


async def test_markers_go_to_every_partition(tmp_path):
    """A partition that was added but not written also gets a marker."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 3)
        producer = await begun(services)
        assert await producer.add(1, 2) == [0, 0]
        await producer.write(b"x", partition=2)
        await producer.end(commit=True)
        marks = [partition.high_watermark for partition in services.store.partitions("t")]
        assert marks == [1, 1, 2]
        assert {
            p.last_stable_offset - p.high_watermark for p in services.store.partitions("t")
        } == {0}


async def test_unknown_partitions_keep_all_from_being_added(tmp_path):
    """The known partitions get OPERATION_NOT_ATTEMPTED, and no transaction starts."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = Producer(services)
        await producer.init()
        codes = [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]
        assert await producer.add(0, 5) == codes
        assert await state_of(services) == "Empty"


async def test_a_batch_outside_its_transaction_is_refused(tmp_path):
    """A batch is refused before its partition is added and after the transaction ends."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        producer = Producer(services)
        await producer.init()
        assert (await producer.write(b"early")).error_code == Code.INVALID_TXN_STATE
        producer.sequences.clear()
        await producer.add(0)
        assert (await producer.write(b"elsewhere", partition=1)).error_code == (
            Code.INVALID_TXN_STATE
        )
        assert (await producer.write(b"in")).error_code == Code.NONE
        await producer.end(commit=True)
        late = await producer.write(b"late")
        assert (late.error_code, late.base_offset) == (Code.INVALID_TXN_STATE, -1)
        nameless = await services.write(
            "t", [b"x"], producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=1
        )
        assert nameless.error_code == Code.NONE  # idempotent without a transaction is allowed
        (partition, _) = services.store.partitions("t")
        assert partition.last_stable_offset == partition.high_watermark


async def test_refused_batches_do_not_refuse_their_neighbours(tmp_path):
    """One partition outside the transaction gets an error. The other two are appended."""
    from cordwood.batch.records import encode_batch
    from cordwood.model import Record
    from cordwood.protocol.kafka.messages.produce import (
        ProducePartition,
        ProduceRequest,
        ProduceTopic,
    )

    async with KafkaServices(tmp_path) as services:
        await services.create("t", 3)
        producer = await begun(services)
        await producer.add(2)
        data = encode_batch(
            [Record(0, 1, None, b"v")],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        parts = [ProducePartition(number, data) for number in range(3)]
        reply = await services.ask(
            ProduceRequest("tx", -1, 1000, [ProduceTopic("t", partitions=parts)])
        )
        answered = [(p.partition, p.error_code) for p in reply.topics[0].partitions]
        assert answered == [(0, 0), (1, Code.INVALID_TXN_STATE), (2, 0)]


async def test_a_newer_instance_fences_the_older(tmp_path):
    """The old producer's open transaction is aborted, and its later requests are refused."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        old = await begun(services, b"lost")
        new = Producer(services)
        assert await new.init() == Code.CONCURRENT_TRANSACTIONS  # until the abort is complete
        await services.coordinators.transactions.idle()
        assert await new.init() == Code.NONE
        assert (new.id, new.epoch) == (old.id, old.epoch + 2)  # one epoch for the fence, one for it
        assert await old.add(0) == [Code.PRODUCER_FENCED]
        assert await old.end(commit=True) == Code.PRODUCER_FENCED
        assert (await old.write(b"zombie")).error_code == Code.INVALID_PRODUCER_EPOCH
        (partition,) = services.store.partitions("t")
        assert len(partition.aborted(0, partition.high_watermark)) == 1


async def test_a_transaction_left_open_is_aborted_in_time(tmp_path):
    """The timer aborts it after the producer's own timeout."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        producer = await begun(services, b"a")
        clock.advance(MINUTE_MS)
        services.coordinators.transactions.timers.look()
        await services.coordinators.transactions.idle()
        assert await state_of(services) == "CompleteAbort"
        assert await producer.end(commit=True) == Code.PRODUCER_FENCED
        (partition,) = services.store.partitions("t")
        assert partition.last_stable_offset == partition.high_watermark == 2


async def test_offsets_move_with_the_commit_and_not_before(tmp_path):
    """While it is open, a fetch with require_stable fails. The commit registers the group."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="consume")
        producer = await begun(services)
        assert await producer.add_offsets() == Code.NONE
        assert await producer.stage(7) == Code.NONE
        ask = OffsetFetchRequest("g", [TopicPartitions("t", [0])], require_stable=True)
        found = (await services.ask(ask, 7)).topics[0].partitions[0]
        assert found.error_code == Code.UNSTABLE_OFFSET_COMMIT
        loose = (await services.ask(ask._replace(require_stable=False), 7)).topics[0].partitions[0]
        assert (loose.offset, loose.error_code) == (-1, 0)
        assert await producer.end(commit=True) == Code.NONE
        found = (await services.ask(ask, 7)).topics[0].partitions[0]
        assert (found.offset, found.error_code) == (7, 0)
        assert "g" in services.metadata.readers.registered("t")


async def test_the_end_of_a_transaction_and_its_offsets_are_one_write(tmp_path, monkeypatch):
    """One write stores both, so a crash cannot commit the records without the offsets."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = await begun(services)
        await producer.add_offsets()
        await producer.stage(7)
        writes: list[set[str]] = []
        txn = SqliteStore.txn

        def recorded(store, **how):
            writes.append({key.split("/")[1] for key in how["put"]})
            return txn(store, **how)

        monkeypatch.setattr(SqliteStore, "txn", recorded)
        assert await producer.end(commit=True) == Code.NONE
        assert [kinds for kinds in writes if "cursor" in kinds] == [{"cursor", "transaction"}]
        assert writes[0] == {"transaction"}, "its fate is sealed before anything else"


async def test_offsets_of_an_aborted_transaction_never_move(tmp_path):
    """An abort moves no cursor and registers no group."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", cleanup_policy="consume")
        producer = await begun(services)
        await producer.add_offsets()
        await producer.stage(7)
        await producer.end(commit=False)
        assert not services.metadata.readers.cursors()
        assert not services.metadata.readers.registered("t")


async def test_a_transaction_may_not_commit_for_a_member_that_is_none(tmp_path):
    """Both the transaction and the consumer group check a transactional offset commit."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = await begun(services)
        assert await producer.stage(1) == Code.TRANSACTION_ABORTABLE  # AddOffsetsToTxn was not sent
        await producer.add_offsets()
        who = {"generation_id": 3, "member_id": "stranger"}
        assert await producer.stage(1, **who) == Code.ILLEGAL_GENERATION
        assert await producer.stage(1, group="") == Code.INVALID_GROUP_ID


@pytest.mark.parametrize("commit", [True, False])
async def test_a_start_finishes_what_was_decided(tmp_path, monkeypatch, commit):
    """After a restart, the coordinator writes the missing markers and moves the cursors."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        producer = await begun(services, b"a")
        await producer.add_offsets()
        await producer.stage(1)

        reached = asyncio.Event()

        async def never(*_):
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(services.coordinators.transactions, "_append", never)
        ending = asyncio.ensure_future(producer.end(commit=commit))
        await reached.wait()
        assert services.metadata.readers.transactions["tx"]["state"].startswith("Prepare")
        services.coordinators.drain()
        assert await ending == Code.COORDINATOR_NOT_AVAILABLE
    async with KafkaServices(tmp_path) as services:
        wanted = "CompleteCommit" if commit else "CompleteAbort"
        await services.coordinators.transactions.idle()
        assert await state_of(services) == wanted
        (partition,) = services.store.partitions("t")
        assert partition.last_stable_offset == partition.high_watermark == 2
        assert len(partition.aborted(0, 2)) == (0 if commit else 1)
        assert (ReaderPartition("g", "t", 0) in services.metadata.readers.cursors()) is commit


async def test_an_open_transaction_survives_a_restart(tmp_path):
    """The producer continues its transaction after the restart and commits it."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        before = await begun(services, b"a")
    async with KafkaServices(tmp_path) as services:
        after = Producer(services)
        after.__dict__.update(before.__dict__, services=services)
        assert (await after.write(b"b")).error_code == Code.NONE
        assert await after.end(commit=True) == Code.NONE
        (partition,) = services.store.partitions("t")
        assert partition.last_stable_offset == 3


async def test_a_topic_deleted_meanwhile_does_not_stop_the_end(tmp_path):
    """The transaction commits without markers or cursors for the deleted topic."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.create("u")
        producer = await begun(services, b"a")
        await producer.add(0, topic="u")
        await producer.add_offsets()
        await producer.stage(1)
        await services.topics.delete("t")
        assert await producer.end(commit=True) == Code.NONE
        assert await state_of(services) == "CompleteCommit"
        assert services.store.partitions("u")[0].high_watermark == 1
        assert not services.metadata.readers.cursors()


async def test_markers_that_fail_are_written_later(tmp_path, monkeypatch):
    """EndTxn succeeds once the decision is stored. A timer retries the failed markers."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        producer = await begun(services, b"a")

        def full(_, appends):
            return [DiskFull("no space left")] * len(appends)

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_all", full)
            assert await producer.end(commit=True) == Code.NONE
        assert await state_of(services) == "PrepareCommit"
        assert await producer.add(0) == [Code.CONCURRENT_TRANSACTIONS]
        clock.advance(1_000)
        services.coordinators.transactions.timers.look()
        await services.coordinators.transactions.idle()
        assert await state_of(services) == "CompleteCommit"
        (partition,) = services.store.partitions("t")
        assert partition.last_stable_offset == 2


async def test_a_record_that_cannot_be_saved_leaves_the_last_one_in_force(tmp_path, monkeypatch):
    """The requests are refused, the state stays as stored, and a later retry succeeds."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t", 2)
        producer = await begun(services, b"a")

        def broken(*_):
            raise UnavailableError("the disk is away")

        with monkeypatch.context() as patched:
            patched.setattr(services.metadata.readers, "put_transaction", broken)
            codes = await asyncio.gather(producer.add(1), producer.end(commit=True))
            assert codes == [[Code.COORDINATOR_NOT_AVAILABLE], Code.COORDINATOR_NOT_AVAILABLE]
            assert await Producer(services, "new").init() == Code.COORDINATOR_NOT_AVAILABLE
        await services.coordinators.transactions.idle()
        (open_one,) = (await services.ask(DescribeTransactionsRequest(["tx"]))).transactions
        assert open_one.state == "Ongoing"
        assert [tuple(topic) for topic in open_one.topics] == [("t", (0,))]
        assert await producer.add(1) == [Code.NONE]
        assert await producer.end(commit=True) == Code.NONE
        assert [p.high_watermark for p in services.store.partitions("t")] == [2, 1]


async def test_a_completion_that_cannot_be_saved_is_tried_again(tmp_path, monkeypatch):
    """The retry waits for a timer. Repeated markers change nothing for readers."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        producer = await begun(services, b"a")
        put = services.metadata.readers.put_transaction
        failures = []

        def broken(name, txn_record, cursors=None):
            if txn_record["state"].startswith("Complete"):
                failures.append(txn_record)
                raise UnavailableError("the disk is away")
            put(name, txn_record, cursors)

        with monkeypatch.context() as patched:
            patched.setattr(services.metadata.readers, "put_transaction", broken)
            assert await producer.end(commit=True) == Code.COORDINATOR_NOT_AVAILABLE
            await services.coordinators.transactions.idle()
        assert len(failures) == 1
        clock.advance(1_000)
        services.coordinators.transactions.timers.look()
        await services.coordinators.transactions.idle()
        assert await state_of(services) == "CompleteCommit"
        (partition,) = services.store.partitions("t")
        assert partition.last_stable_offset == partition.high_watermark == 3
        assert not partition.aborted(0, 3)


async def test_an_unused_id_is_forgotten(tmp_path):
    """After ``transactional.id.expiration.ms`` the id is deleted from memory and disk."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock, transactional_id_expiration_ms=5_000) as services:
        await Producer(services).init()
        clock.advance(5_000)
        services.coordinators.transactions.timers.look()
        await services.coordinators.transactions.idle()
        assert not services.metadata.readers.transactions
        (found,) = (await services.ask(DescribeTransactionsRequest(["tx"]))).transactions
        assert found.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND


async def test_producers_of_a_partition_are_described(tmp_path):
    """The reply has id, epoch, last sequence and the start offset of the open transaction."""
    async with KafkaServices(tmp_path) as services:
        await services.create("t")
        await services.write("t", [b"plain"])
        producer = await begun(services, b"a", b"b")
        asked = DescribeProducersRequest([TopicPartitions("t", [0, 9])])
        one, absent = (await services.ask(asked)).topics[0].partitions
        (found,) = one.active_producers
        assert (found.producer_id, found.producer_epoch) == (producer.id, producer.epoch)
        assert (found.last_sequence, found.current_txn_start_offset) == (1, 1)
        assert absent.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_transactions_are_listed_by_what_is_asked(tmp_path):
    """Filters are state, producer id, duration and pattern. The reply names unknown states."""
    clock = ManualClock()
    async with KafkaServices(tmp_path, clock) as services:
        await services.create("t")
        producer = await begun(services)
        other = Producer(services, "idle")
        await other.init()
        clock.advance(10)

        async def listed(*filters, version=1):
            reply = await services.ask(ListTransactionsRequest(*filters), version)
            return [each.transactional_id for each in reply.transactions]

        assert await listed([], []) == ["idle", "tx"]
        assert await listed(["Ongoing"], []) == ["tx"]
        assert await listed([], [other.id]) == ["idle"]
        assert await listed([], [], 9) == ["tx"]
        assert await listed([], [], 10) == []
        assert await listed([], [], -1, "i.*|none", version=2) == ["idle"]
        assert await listed([], [], -1, "dle", version=2) == []  # whole ids
        assert await listed([], [], -1, "", version=2) == ["idle", "tx"]
        wrong = await services.ask(ListTransactionsRequest([], [], -1, "("))
        assert wrong.error_code == Code.INVALID_REGULAR_EXPRESSION
        reply = await services.ask(ListTransactionsRequest(["Nope", "Ongoing"], []))
        assert list(reply.unknown_state_filters) == ["Nope"]
        described = (await services.ask(DescribeTransactionsRequest(["tx"]))).transactions[0]
        assert (described.producer_id, described.timeout_ms) == (producer.id, MINUTE_MS)
        assert TopicPartition("t", 0) in [
            TopicPartition(topic.name, number)
            for topic in described.topics
            for number in topic.partitions
        ]
