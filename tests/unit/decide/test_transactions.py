"""Transactions, rule by rule; times in ms from 0."""

from __future__ import annotations

import itertools
import json

import pytest

from cordwood.config import BrokerConfig
from cordwood.decide.codes import Code
from cordwood.decide.offsets import PartitionOffset
from cordwood.decide.transactions import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    Erase,
    Forget,
    InitProducer,
    MarkersFailed,
    MarkersWritten,
    Persist,
    Reply,
    SetTimer,
    StagedOffsets,
    StageOffsets,
    Tick,
    Transactions,
    TransactionSettings,
    WriteMarkers,
)
from cordwood.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
LAST_EPOCH = 2**15 - 2  # the last one given to a producer


class Desk:
    """One transactional id; keeps the last ledger as the disk would."""

    def __init__(self, **settings) -> None:
        self.transactions = Transactions(TransactionSettings(**settings))
        self.now_ms = 0
        self.disk = None
        self.out = []
        self._tokens = itertools.count(1)
        self._ids = itertools.count(100)

    @property
    def ledger(self):
        return self.transactions.describe("tx")

    def send(self, event):
        """Hand in an event; the answer to it, or ``None`` while it waits."""
        self.out = self.transactions.handle("tx", event, self.now_ms)
        for each in self.out:
            if isinstance(each, Persist):
                self.disk = json.loads(json.dumps(each.ledger))
        token = getattr(event, "token", None)
        answers = [e.answer for e in self.out if isinstance(e, Reply) and e.token == token]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def init(self, producer_id=-1, epoch=-1, *, version=5, timeout_ms=TIMEOUT_MS):
        return self.send(
            InitProducer(
                token=next(self._tokens),
                version=version,
                timeout_ms=timeout_ms,
                fresh_producer_id=next(self._ids),
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def add(self, *partitions, epoch=0, producer_id=100, version=3):
        return self.send(
            AddPartitions(
                token=next(self._tokens),
                version=version,
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=frozenset(partitions),
            )
        ).code

    def add_offsets(self, group_id="g", *, epoch=0, version=4):
        return self.send(
            AddOffsets(
                token=next(self._tokens),
                version=version,
                producer_id=100,
                producer_epoch=epoch,
                group_id=group_id,
            )
        ).code

    def stage(self, offset, partition=A, *, group_id="g", epoch=0, version=3):
        return self.send(
            StageOffsets(
                token=next(self._tokens),
                version=version,
                producer_id=100,
                producer_epoch=epoch,
                group_id=group_id,
                offsets=(PartitionOffset(partition, offset),),
            )
        ).code

    def end(self, *, commit=True, epoch=0, producer_id=100, version=4):
        """The code of an end; with markers to write ``None`` until they are written."""
        answer = self.send(
            EndTransaction(
                token=next(self._tokens),
                version=version,
                producer_id=producer_id,
                producer_epoch=epoch,
                commit=commit,
            )
        )
        return None if answer is None else answer.code

    def written(self) -> list[Code]:
        """The markers are written; what is answered then."""
        self.send(MarkersWritten())
        return [each.answer.code for each in self.out if isinstance(each, Reply)]

    def kinds(self):
        return [type(each) for each in self.out]

    def restart(self):
        self.transactions = Transactions()
        self.out = self.transactions.restore("tx", self.disk)


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def open_desk(desk):
    """With a transaction over two partitions."""
    desk.init()
    assert desk.add(A, B) == Code.NONE
    return desk


# --- a producer's epoch ---------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_id_and_epoch_0(desk):
    """And that is durable before it is told."""
    answer = desk.init()
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)
    assert desk.kinds() == [Persist, Reply, SetTimer]


def test_each_init_raises_the_epoch_and_fences_the_former(desk):
    """The former producer of the id can do nothing any more."""
    desk.init()
    assert desk.init().producer_epoch == 1
    assert desk.add(A, epoch=0) == Code.PRODUCER_FENCED
    assert desk.add(A, epoch=1) == Code.NONE


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(desk, timeout_ms):
    """And leaves nothing behind."""
    assert desk.init(timeout_ms=timeout_ms).code == Code.INVALID_TRANSACTION_TIMEOUT
    assert desk.ledger is None


def test_a_producer_may_raise_its_own_epoch(desk):
    """From InitProducerId 3 on it says what it has; the same question gets the same answer."""
    desk.init()
    assert desk.init(100, 0).producer_epoch == 1
    assert desk.init(100, 0).producer_epoch == 1
    assert desk.init(100, 1).producer_epoch == 2
    assert desk.init(100, 0).code == Code.PRODUCER_FENCED


def test_a_producer_that_was_replaced_cannot_raise_its_epoch(desk):
    """Another instance came in between; older clients are told in a code they know."""
    desk.init()
    desk.init()
    assert desk.init(100, 0).code == Code.PRODUCER_FENCED
    assert desk.init(100, 0, version=3).code == Code.INVALID_PRODUCER_EPOCH
    assert desk.init(77, 1).code == Code.PRODUCER_FENCED


def test_a_producer_the_broker_forgot_is_taken_as_new(desk):
    """Whatever id and epoch it says it had."""
    answer = desk.init(55, 7)
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)


@pytest.mark.parametrize("says", [True, False])
def test_exhausted_epochs_bring_a_new_producer_id(desk, says):
    """Epochs are 16 bits; the last one is kept for fencing. A repeated question still works."""
    desk.init()
    _set_epoch(desk, LAST_EPOCH)
    known = (100, LAST_EPOCH) if says else (-1, -1)
    answer = desk.init(*known)
    assert answer.producer_epoch == 0
    assert answer.producer_id > 100
    again = desk.init(100, LAST_EPOCH)
    if says:
        assert (again.producer_id, again.producer_epoch) == (answer.producer_id, 0)
    else:
        assert again.code == Code.PRODUCER_FENCED


def _set_epoch(desk, epoch):
    desk.disk["producer_epoch"] = epoch
    desk.restart()


def test_an_open_transaction_is_aborted_before_a_new_epoch_is_given(open_desk):
    """The newcomer is asked to wait; the old producer is fenced by the markers' epoch."""
    assert open_desk.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_desk.kinds() == [Persist, WriteMarkers, Reply]
    assert open_desk.out[1] == WriteMarkers(100, 1, False, (A, B))
    assert open_desk.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_desk.end(epoch=0) == Code.PRODUCER_FENCED
    assert open_desk.written() == []
    assert open_desk.init().producer_epoch == 2


def test_fencing_with_the_last_epoch_still_works(open_desk):
    """One epoch was kept back for it; then the id rotates."""
    _set_epoch(open_desk, LAST_EPOCH)
    open_desk.init()
    assert open_desk.out[1].producer_epoch == LAST_EPOCH + 1
    open_desk.written()
    assert open_desk.init().producer_epoch == 0


def test_a_stale_producer_cannot_abort_its_successors_transaction(desk):
    """It asks for a new epoch naming one that is over."""
    desk.init()
    desk.init()
    desk.add(A, epoch=1)
    assert desk.init(100, 0).code == Code.PRODUCER_FENCED
    assert desk.ledger.state == "Ongoing"


# --- adding and ending ----------------------------------------------------------------------


def test_partitions_are_durable_before_they_are_confirmed(desk):
    """Otherwise a crash could leave records no marker ever closes."""
    desk.init()
    desk.add(A)
    assert desk.kinds() == [Persist, Reply, SetTimer]
    desk.add(A, B)
    assert desk.kinds() == [Persist, Reply]
    desk.add(A)
    assert desk.kinds() == [Reply]  # nothing new
    assert desk.ledger.partitions == {A, B}


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_seals_the_fate_then_marks_then_completes_then_answers(open_desk, commit):
    """In this order, a crash anywhere can be recovered from."""
    assert open_desk.end(commit=commit) is None
    assert open_desk.kinds() == [Persist, WriteMarkers]
    assert open_desk.disk["state"] == ("PrepareCommit" if commit else "PrepareAbort")
    assert open_desk.out[1] == WriteMarkers(100, 0, commit, (A, B))
    assert open_desk.written() == [Code.NONE]
    assert open_desk.kinds() == [Persist, Reply, SetTimer]
    assert open_desk.disk["state"] == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_again_is_fine_and_the_other_is_not(open_desk, commit):
    """A client that missed the answer asks again; while markers are written it must wait."""
    open_desk.end(commit=commit)
    assert open_desk.end(commit=commit) == Code.CONCURRENT_TRANSACTIONS
    assert open_desk.end(commit=not commit) == Code.INVALID_TXN_STATE
    assert open_desk.written() == [Code.NONE]
    assert open_desk.end(commit=commit) == Code.NONE
    assert open_desk.end(commit=not commit) == Code.INVALID_TXN_STATE


def test_nothing_can_be_ended_that_was_not_begun(desk):
    """An id without transaction has no end."""
    desk.init()
    assert desk.end() == Code.INVALID_TXN_STATE


def test_a_transaction_being_ended_takes_nothing_more(open_desk):
    """The next one begins when it is over."""
    open_desk.end()
    assert open_desk.add(A) == Code.CONCURRENT_TRANSACTIONS
    assert open_desk.add_offsets() == Code.CONCURRENT_TRANSACTIONS
    open_desk.written()
    assert open_desk.add(A) == Code.NONE
    assert open_desk.ledger.partitions == {A}


@pytest.mark.parametrize(
    ("version", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)]
)
def test_old_clients_are_fenced_in_a_code_they_know(open_desk, version, code):
    """PRODUCER_FENCED came with version 2 of these requests; offset commits never had it."""
    assert open_desk.add(A, epoch=7, version=version) == code
    assert open_desk.add_offsets(epoch=7, version=version) == code
    assert open_desk.end(epoch=7, version=version) == code
    assert open_desk.stage(1, epoch=7) == Code.INVALID_PRODUCER_EPOCH


def test_another_producer_id_is_no_mapping(open_desk):
    """Nor is any for an id nobody initialised."""
    assert open_desk.add(A, producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert open_desk.end(producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Desk().add(A) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Desk().add(A, producer_id=-1, epoch=-1) == Code.INVALID_PRODUCER_ID_MAPPING


def test_a_batch_is_let_in_only_with_an_open_transaction_over_its_partition(open_desk):
    """Else no marker would ever close it."""
    verify = open_desk.transactions.verify
    assert verify("tx", 100, 0, frozenset({A})) == Code.NONE
    assert verify("tx", 100, 1, frozenset({A})) == Code.PRODUCER_FENCED
    assert verify("tx", 9, 0, frozenset({A})) == Code.INVALID_PRODUCER_ID_MAPPING
    assert verify("no", 100, 0, frozenset({A})) == Code.INVALID_PRODUCER_ID_MAPPING
    assert verify("tx", 100, 0, frozenset({A, TopicPartition("c", 0)})) == Code.INVALID_TXN_STATE
    open_desk.end()
    assert verify("tx", 100, 0, frozenset({A})) == Code.INVALID_TXN_STATE


# --- offsets --------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_staged_offsets_move_the_cursors_with_the_commit_only(open_desk, commit):
    """They ride in the step that completes the transaction, the latest of each partition."""
    open_desk.add_offsets()
    for offset in (1, 2):
        assert open_desk.stage(offset) == Code.NONE
    assert open_desk.transactions.unstable("g", [A, B]) == {A}
    assert open_desk.transactions.unstable("other", [A]) == frozenset()
    open_desk.end(commit=commit)
    open_desk.written()
    expected = (StagedOffsets("g", (PartitionOffset(A, 2),)),) if commit else ()
    assert open_desk.out[0].cursors == expected
    assert open_desk.transactions.unstable("g", [A]) == frozenset()


def test_a_transaction_of_offsets_alone_ends_in_one_step(desk):
    """There is nothing to mark, so there is nothing to be caught between."""
    desk.init()
    desk.add_offsets()
    desk.stage(4)
    assert desk.end() == Code.NONE
    assert desk.kinds() == [Persist, Reply, SetTimer]
    assert desk.out[0].cursors[0].offsets == (PartitionOffset(A, 4),)


@pytest.mark.parametrize(
    ("version", "code"), [(3, Code.INVALID_TXN_STATE), (4, Code.TRANSACTION_ABORTABLE)]
)
def test_offsets_must_be_announced(open_desk, version, code):
    """Of that very group, in this transaction."""
    open_desk.add_offsets("other")
    assert open_desk.stage(1, version=version) == code


# --- time -----------------------------------------------------------------------------------


def test_a_transaction_left_open_is_aborted_under_a_new_epoch(open_desk):
    """Counted from its begin; what its producer does later is refused."""
    open_desk.now_ms = TIMEOUT_MS - 1
    open_desk.add(TopicPartition("c", 0))
    open_desk.send(Tick())
    assert open_desk.out == [SetTimer(TIMEOUT_MS)]
    open_desk.now_ms = TIMEOUT_MS
    open_desk.send(Tick())
    assert open_desk.kinds() == [Persist, WriteMarkers]
    assert (open_desk.out[1].commit, open_desk.out[1].producer_epoch) == (False, 1)
    assert open_desk.end(epoch=0) == Code.PRODUCER_FENCED
    assert open_desk.written() == []


def test_failed_markers_are_tried_again(open_desk):
    """The fate is sealed, so who ended it is told; the id is busy until the markers are there."""
    open_desk.end()
    open_desk.send(MarkersFailed())
    reply, timer = open_desk.out
    assert reply.answer.code == Code.NONE
    assert open_desk.add(A) == Code.CONCURRENT_TRANSACTIONS
    open_desk.now_ms = timer.at_ms
    open_desk.send(Tick())
    assert open_desk.out == [WriteMarkers(100, 0, True, (A, B))]
    assert open_desk.written() == []
    assert open_desk.ledger.state == "CompleteCommit"


def test_an_idle_id_is_forgotten_in_time():
    """Not one with a transaction open."""
    desk = Desk(expiry_ms=1_000)
    desk.init()
    desk.now_ms = 999
    desk.send(Tick())
    assert desk.out == [SetTimer(1_000)]
    desk.now_ms = 1_000
    desk.send(Tick())
    assert desk.out == [Erase(), Forget()]
    assert desk.ledger is None
    desk.send(Tick())
    assert desk.out == []


# --- recovery -------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_sealed_transaction_is_finished_after_a_restart(open_desk, commit):
    """With the same markers, to all its partitions; its offsets still wait for the end."""
    open_desk.add_offsets()
    open_desk.stage(3)
    open_desk.end(commit=commit)
    open_desk.restart()
    assert open_desk.out == [WriteMarkers(100, 0, commit, (A, B))]
    open_desk.written()
    assert bool(open_desk.out[0].cursors) is commit
    assert open_desk.end(commit=commit) == Code.NONE


def test_an_open_transaction_goes_on_after_a_restart(open_desk):
    """Its clock too."""
    open_desk.restart()
    assert open_desk.out == [SetTimer(TIMEOUT_MS)]
    assert open_desk.end() is None
    assert open_desk.written() == [Code.NONE]


def test_ids_are_listed_by_state_and_producer(open_desk):
    """As ListTransactions asks."""
    listing = open_desk.transactions.listing
    assert [each for each, _ in listing()] == ["tx"]
    assert listing(["Ongoing"], [100]) == [("tx", open_desk.ledger)]
    assert listing(["Empty"]) == []
    assert listing((), [5]) == []
    assert open_desk.transactions.count()["Ongoing"] == 1


def test_an_empty_transactional_id_is_no_id():
    """Null means a producer without transactions and is not asked here; empty is a mistake."""
    transactions = Transactions()
    init = InitProducer(token=1, version=5, timeout_ms=1, fresh_producer_id=1)
    assert transactions.handle("", init, 0)[0].answer.code == Code.INVALID_REQUEST
    end = EndTransaction(token=1, version=4, producer_id=1, producer_epoch=0, commit=True)
    assert transactions.handle("", end, 0)[0].answer.code == Code.INVALID_REQUEST


def test_an_id_that_was_never_durable_can_be_dropped(desk):
    """If its first step could not be persisted, it was never there."""
    desk.init()
    desk.transactions.drop("tx")
    assert desk.ledger is None


def test_settings_default_to_the_config_tables():
    """One table of defaults, said twice, must not drift."""
    assert TransactionSettings.from_config(BrokerConfig()) == TransactionSettings()
