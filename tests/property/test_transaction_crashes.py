"""Transactions are atomic, wherever the broker crashes.

The model is what a broker keeps on disk: the last transaction record, partitions with records and
markers, and cursors. A crash stops the execution of instructions after any effect; the disk stays,
but the state machine and all pending answers are lost.
"""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from cordwood.codes import Code
from cordwood.decide.instructions import Reply, SetTimer, Tick
from cordwood.decide.offsets import PartitionOffset
from cordwood.decide.transactions.directory import TransactionDirectory
from cordwood.decide.transactions.messages import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    Erase,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    Persist,
    StageOffsets,
    WriteMarkers,
)
from cordwood.decide.transactions.record import encode_transaction_record, parse_transaction_record
from cordwood.model import TopicPartition

TIMEOUT_MS = 10_000
GROUP = "g"
CURSOR = TopicPartition("in", 0)
OUTPUTS = [TopicPartition("out", each) for each in range(3)]


class Crash(Exception):
    """The broker process died; its disk survives."""


class Disk:
    """The state that survives a crash, and the outcome of each transaction in it."""

    def __init__(self) -> None:
        self.txn_record = None
        self.open = {each: [] for each in OUTPUTS}  # transactions with records, no marker yet
        self.epochs = dict.fromkeys(OUTPUTS, (-1, -1))
        self.outcomes = {}  # transaction → partition → committed?
        self.applied = []  # transactions whose offsets became cursors, in order

    def append(self, partition, producer, transaction) -> None:
        assert producer >= self.epochs[partition], "a fenced producer wrote"
        if transaction not in self.open[partition]:
            self.open[partition].append(transaction)

    def mark(self, partition, producer, commit) -> None:
        self.epochs[partition] = max(self.epochs[partition], producer)
        for transaction in self.open[partition]:
            self.outcomes.setdefault(transaction, {})[partition] = commit
        self.open[partition] = []


class Broker:
    """Executes instructions until its number of effects is used up, then crashes."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.now_ms = 0
        self.timer_ms = None
        self.effects_left = None
        self.fail_markers = False
        self.answers = {}
        self.transactions = TransactionDirectory()

    def send(self, event):
        self._carry_out(self.transactions.handle("tx", event, self.now_ms))
        return self.answers.pop(getattr(event, "token", None), None)

    def start(self) -> None:
        """Restart after a crash: restore everything from the disk."""
        self.transactions, self.timer_ms, self.answers = TransactionDirectory(), None, {}
        if self.disk.txn_record is not None:
            self._carry_out(self.transactions.restore("tx", json.loads(self.disk.txn_record)))

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for _ in range(20):
            if self.timer_ms is None or self.timer_ms > self.now_ms:
                return
            self.timer_ms = None
            self.send(Tick())

    def _effect(self) -> None:
        if self.effects_left is not None:
            if self.effects_left == 0:
                raise Crash
            self.effects_left -= 1

    def _carry_out(self, instructions) -> None:
        for each in instructions:
            match each:
                case Persist(txn_record, cursors):
                    self._effect()
                    self.disk.txn_record = json.dumps(txn_record)
                    self.disk.applied += [kept.offset for _, all_ in cursors for kept in all_]
                case Erase():
                    self._effect()
                    self.disk.txn_record = None
                case WriteMarkers():
                    self._mark(each)
                case Reply(token, answer):
                    self._effect()
                    self.answers[token] = answer
                case SetTimer(at_ms):
                    self.timer_ms = at_ms

    def _mark(self, markers: WriteMarkers) -> None:
        for partition in markers.partitions:
            if self.fail_markers and partition == markers.partitions[-1]:
                self.fail_markers = False
                self.send(MarkersFailed())
                return
            self._effect()
            producer = (markers.producer_id, markers.producer_epoch)
            self.disk.mark(partition, producer, markers.commit)
        self.send(MarkersWritten())


class Producer:
    """A client with the answers it got; it identifies a transaction by its number."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.identity = None
        self.fresh = 0
        self.number = 0
        self.ending = None
        self.staged = False
        self.acknowledged = {}  # transaction → committed?
        self.sure = set()  # transactions whose staged offsets were confirmed
        self.retired = []

    def _ask(self, kind, **fields):
        self.fresh += 1
        who = (
            {}
            if self.identity is None
            else dict(zip(("producer_id", "producer_epoch"), self.identity, strict=True))
        )
        return self.broker.send(kind(token=self.fresh, version=4, **{**who, **fields}))

    def init(self, *_):
        if self.identity is not None:
            self.retired.append(self.identity)
        self.identity = None
        self.fresh += 1
        answer = self._ask(InitProducer, timeout_ms=TIMEOUT_MS, fresh_producer_id=self.fresh)
        if answer.code == Code.NONE:
            self.identity = (answer.producer_id, answer.producer_epoch)
            self._begin()

    def _begin(self) -> None:
        self.number += 1
        self.ending, self.staged = None, False

    def write(self, index, *_):
        partition = OUTPUTS[index % len(OUTPUTS)]
        if self.identity is None or self.ending is not None:
            return
        self._ask(AddPartitions, partitions=frozenset({partition}))
        verdict = self.broker.transactions.verify("tx", *self.identity, frozenset({partition}))
        if verdict == Code.NONE:
            self.broker.disk.append(partition, self.identity, self.number)

    def stage(self, *_):
        if self.identity is None or self.ending is not None:
            return
        self._ask(AddOffsets, group_id=GROUP)
        offsets = (PartitionOffset(CURSOR, self.number),)
        if self._ask(StageOffsets, group_id=GROUP, offsets=offsets).code == Code.NONE:
            self.sure.add(self.number)

    def end(self, index, *_):
        if self.identity is None:
            return
        self.ending = bool(index % 2) if self.ending is None else self.ending
        answer = self._ask(EndTransaction, commit=self.ending)
        if answer is None or answer.code == Code.CONCURRENT_TRANSACTIONS:
            return  # the client asks again later
        if answer.code == Code.NONE:
            self.acknowledged[self.number] = self.ending
        self._begin()

    def wait(self, index, *_):
        self.broker.advance([100, 1_000, TIMEOUT_MS][index % 3])

    def fail_markers(self, *_):
        self.broker.fail_markers = True

    def zombie(self, index, *_):
        """A fenced former producer sends every request, and each is refused."""
        if not self.retired or self.identity is None:
            return
        producer_id, epoch = self.retired[index % len(self.retired)]
        if (producer_id, epoch) == self.identity:
            return
        fields = {"producer_id": producer_id, "producer_epoch": epoch}
        for kind, more in (
            (AddPartitions, {"partitions": frozenset(OUTPUTS)}),
            (EndTransaction, {"commit": True}),
            (InitProducer, {"timeout_ms": TIMEOUT_MS, "fresh_producer_id": 0}),
        ):
            assert self._ask(kind, **fields, **more).code != Code.NONE


moves = st.tuples(
    st.sampled_from(
        ["init", "write", "write", "write", "stage", "end", "end", "wait", "zombie", "fail_markers"]
    ),
    st.integers(0, 5),
    st.one_of(st.none(), st.none(), st.integers(0, 6)),  # crash after this many effects
)


@given(st.lists(moves, max_size=50))
def test_a_crash_after_any_effect_leaves_transactions_whole(steps):
    """A transaction has one outcome on all partitions, the one its client was answered."""
    disk = Disk()
    broker = Broker(disk)
    producer = Producer(broker)
    producer.init()
    for name, index, crash_after in steps:
        broker.effects_left = crash_after
        try:
            getattr(producer, name)(index)
        except Crash:
            _restart(broker, index)
        broker.effects_left = None
    broker.start()
    broker.fail_markers = False
    broker.advance(2 * TIMEOUT_MS)
    _check(disk, producer)


def _restart(broker: Broker, again: int) -> None:
    """Restart the broker; it may crash once more while it starts."""
    broker.effects_left = again
    try:
        broker.start()
    except Crash:
        broker.effects_left = None
        broker.start()


def _check(disk: Disk, producer: Producer) -> None:
    assert not any(disk.open.values()), "records nobody will ever close"
    assert parse_transaction_record(json.loads(disk.txn_record)).state not in {
        "Ongoing",
        "PrepareCommit",
    }
    for transaction, outcomes in disk.outcomes.items():
        assert len(set(outcomes.values())) == 1, f"{transaction} is half committed"
        committed = next(iter(outcomes.values()))
        assert producer.acknowledged.get(transaction, committed) is committed
        assert transaction not in disk.applied or committed
        assert not (committed and transaction in producer.sure) or transaction in disk.applied
    for transaction, committed in producer.acknowledged.items():
        if transaction in producer.sure:
            assert (transaction in disk.applied) is committed
    assert len(disk.applied) == len(set(disk.applied)), "offsets were moved twice"
    assert disk.applied == sorted(disk.applied)


@given(st.data())
def test_a_transaction_record_survives_its_json_form(data):
    """Parsing an encoded transaction record returns the same record."""
    broker = Broker(Disk())
    producer = Producer(broker)
    producer.init()
    for _ in range(data.draw(st.integers(0, 6))):
        getattr(producer, data.draw(st.sampled_from(["write", "stage", "end", "init"])))(
            data.draw(st.integers(0, 5))
        )
    txn_record = broker.transactions.describe("tx")
    assert (
        parse_transaction_record(json.loads(json.dumps(encode_transaction_record(txn_record))))
        == txn_record
    )
    assert json.loads(broker.disk.txn_record) == encode_transaction_record(txn_record)
