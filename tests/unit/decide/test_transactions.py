"""Transactions, rule by rule; times in ms from 0."""

from __future__ import annotations

import itertools
import json

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig
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
    TransactionDirectory,
    TransactionSettings,
    WriteMarkers,
)
from cordwood.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
LAST_EPOCH = 2**15 - 2  # the last one given to a producer


class Service:
    """One transactional id; keeps the last ledger as the disk would."""

    def __init__(self, **settings) -> None:
        self.transactions = TransactionDirectory(TransactionSettings(**settings))
        self.now_ms = 0
        self.disk = None
        self.out = []
        self._tokens = itertools.count(1)
        self._ids = itertools.count(100)

    @property
    def txn_record(self):
        return self.transactions.describe("tx")

    def send(self, event):
        """Hand in an event; the answer to it, or ``None`` while it waits."""
        self.out = self.transactions.handle("tx", event, self.now_ms)
        for each in self.out:
            if isinstance(each, Persist):
                self.disk = json.loads(json.dumps(each.txn_record))
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
        self.transactions = TransactionDirectory()
        self.out = self.transactions.restore("tx", self.disk)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def open_service(service):
    """With a transaction over two partitions."""
    service.init()
    assert service.add(A, B) == Code.NONE
    return service


# --- a producer's epoch ---------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_id_and_epoch_0(service):
    """And that is durable before it is told."""
    answer = service.init()
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)
    assert service.kinds() == [Persist, Reply, SetTimer]


def test_each_init_raises_the_epoch_and_fences_the_former(service):
    """The former producer of the id can do nothing any more."""
    service.init()
    assert service.init().producer_epoch == 1
    assert service.add(A, epoch=0) == Code.PRODUCER_FENCED
    assert service.add(A, epoch=1) == Code.NONE


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(service, timeout_ms):
    """And leaves nothing behind."""
    assert service.init(timeout_ms=timeout_ms).code == Code.INVALID_TRANSACTION_TIMEOUT
    assert service.txn_record is None


def test_a_producer_may_raise_its_own_epoch(service):
    """From InitProducerId 3 on it says what it has; the same question gets the same answer."""
    service.init()
    assert service.init(100, 0).producer_epoch == 1
    assert service.init(100, 0).producer_epoch == 1
    assert service.init(100, 1).producer_epoch == 2
    assert service.init(100, 0).code == Code.PRODUCER_FENCED


def test_a_producer_that_was_replaced_cannot_raise_its_epoch(service):
    """Another instance came in between; older clients are told in a code they know."""
    service.init()
    service.init()
    assert service.init(100, 0).code == Code.PRODUCER_FENCED
    assert service.init(100, 0, version=3).code == Code.INVALID_PRODUCER_EPOCH
    assert service.init(77, 1).code == Code.PRODUCER_FENCED


def test_a_producer_the_broker_forgot_is_taken_as_new(service):
    """Whatever id and epoch it says it had."""
    answer = service.init(55, 7)
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)


@pytest.mark.parametrize("says", [True, False])
def test_exhausted_epochs_bring_a_new_producer_id(service, says):
    """Epochs are 16 bits; the last one is kept for fencing. A repeated question still works."""
    service.init()
    _set_epoch(service, LAST_EPOCH)
    known = (100, LAST_EPOCH) if says else (-1, -1)
    answer = service.init(*known)
    assert answer.producer_epoch == 0
    assert answer.producer_id > 100
    again = service.init(100, LAST_EPOCH)
    if says:
        assert (again.producer_id, again.producer_epoch) == (answer.producer_id, 0)
    else:
        assert again.code == Code.PRODUCER_FENCED


def _set_epoch(service, epoch):
    service.disk["producer_epoch"] = epoch
    service.restart()


def test_an_open_transaction_is_aborted_before_a_new_epoch_is_given(open_service):
    """The newcomer is asked to wait; the old producer is fenced by the markers' epoch."""
    assert open_service.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_service.kinds() == [Persist, WriteMarkers, Reply]
    assert open_service.out[1] == WriteMarkers(100, 1, False, (A, B))
    assert open_service.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_service.end(epoch=0) == Code.PRODUCER_FENCED
    assert open_service.written() == []
    assert open_service.init().producer_epoch == 2


def test_fencing_with_the_last_epoch_still_works(open_service):
    """One epoch was kept back for it; then the id rotates."""
    _set_epoch(open_service, LAST_EPOCH)
    open_service.init()
    assert open_service.out[1].producer_epoch == LAST_EPOCH + 1
    open_service.written()
    assert open_service.init().producer_epoch == 0


def test_a_stale_producer_cannot_abort_its_successors_transaction(service):
    """It asks for a new epoch naming one that is over."""
    service.init()
    service.init()
    service.add(A, epoch=1)
    assert service.init(100, 0).code == Code.PRODUCER_FENCED
    assert service.txn_record.state == "Ongoing"


# --- adding and ending ----------------------------------------------------------------------


def test_partitions_are_durable_before_they_are_confirmed(service):
    """Otherwise a crash could leave records no marker ever closes."""
    service.init()
    service.add(A)
    assert service.kinds() == [Persist, Reply, SetTimer]
    service.add(A, B)
    assert service.kinds() == [Persist, Reply]
    service.add(A)
    assert service.kinds() == [Reply]  # nothing new
    assert service.txn_record.partitions == {A, B}


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_seals_the_fate_then_marks_then_completes_then_answers(open_service, commit):
    """In this order, a crash anywhere can be recovered from."""
    assert open_service.end(commit=commit) is None
    assert open_service.kinds() == [Persist, WriteMarkers]
    assert open_service.disk["state"] == ("PrepareCommit" if commit else "PrepareAbort")
    assert open_service.out[1] == WriteMarkers(100, 0, commit, (A, B))
    assert open_service.written() == [Code.NONE]
    assert open_service.kinds() == [Persist, Reply, SetTimer]
    assert open_service.disk["state"] == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_again_is_fine_and_the_other_is_not(open_service, commit):
    """A client that missed the answer asks again; while markers are written it must wait."""
    open_service.end(commit=commit)
    assert open_service.end(commit=commit) == Code.CONCURRENT_TRANSACTIONS
    assert open_service.end(commit=not commit) == Code.INVALID_TXN_STATE
    assert open_service.written() == [Code.NONE]
    assert open_service.end(commit=commit) == Code.NONE
    assert open_service.end(commit=not commit) == Code.INVALID_TXN_STATE


def test_nothing_can_be_ended_that_was_not_begun(service):
    """An id without transaction has no end."""
    service.init()
    assert service.end() == Code.INVALID_TXN_STATE


def test_a_transaction_being_ended_takes_nothing_more(open_service):
    """The next one begins when it is over."""
    open_service.end()
    assert open_service.add(A) == Code.CONCURRENT_TRANSACTIONS
    assert open_service.add_offsets() == Code.CONCURRENT_TRANSACTIONS
    open_service.written()
    assert open_service.add(A) == Code.NONE
    assert open_service.txn_record.partitions == {A}


@pytest.mark.parametrize(
    ("version", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)]
)
def test_old_clients_are_fenced_in_a_code_they_know(open_service, version, code):
    """PRODUCER_FENCED came with version 2 of these requests; offset commits never had it."""
    assert open_service.add(A, epoch=7, version=version) == code
    assert open_service.add_offsets(epoch=7, version=version) == code
    assert open_service.end(epoch=7, version=version) == code
    assert open_service.stage(1, epoch=7) == Code.INVALID_PRODUCER_EPOCH


def test_another_producer_id_is_no_mapping(open_service):
    """Nor is any for an id nobody initialised."""
    assert open_service.add(A, producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert open_service.end(producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Service().add(A) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Service().add(A, producer_id=-1, epoch=-1) == Code.INVALID_PRODUCER_ID_MAPPING


def test_a_batch_is_let_in_only_with_an_open_transaction_over_its_partition(open_service):
    """Else no marker would ever close it."""
    verify = open_service.transactions.verify
    assert verify("tx", 100, 0, frozenset({A})) == Code.NONE
    assert verify("tx", 100, 1, frozenset({A})) == Code.PRODUCER_FENCED
    assert verify("tx", 9, 0, frozenset({A})) == Code.INVALID_PRODUCER_ID_MAPPING
    assert verify("no", 100, 0, frozenset({A})) == Code.INVALID_PRODUCER_ID_MAPPING
    assert verify("tx", 100, 0, frozenset({A, TopicPartition("c", 0)})) == Code.INVALID_TXN_STATE
    open_service.end()
    assert verify("tx", 100, 0, frozenset({A})) == Code.INVALID_TXN_STATE


# --- offsets --------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_staged_offsets_move_the_cursors_with_the_commit_only(open_service, commit):
    """They ride in the step that completes the transaction, the latest of each partition."""
    open_service.add_offsets()
    for offset in (1, 2):
        assert open_service.stage(offset) == Code.NONE
    assert open_service.transactions.unstable("g", [A, B]) == {A}
    assert open_service.transactions.unstable("other", [A]) == frozenset()
    open_service.end(commit=commit)
    open_service.written()
    expected = (StagedOffsets("g", (PartitionOffset(A, 2),)),) if commit else ()
    assert open_service.out[0].cursors == expected
    assert open_service.transactions.unstable("g", [A]) == frozenset()


def test_a_transaction_of_offsets_alone_ends_in_one_step(service):
    """There is nothing to mark, so there is nothing to be caught between."""
    service.init()
    service.add_offsets()
    service.stage(4)
    assert service.end() == Code.NONE
    assert service.kinds() == [Persist, Reply, SetTimer]
    assert service.out[0].cursors[0].offsets == (PartitionOffset(A, 4),)


@pytest.mark.parametrize(
    ("version", "code"), [(3, Code.INVALID_TXN_STATE), (4, Code.TRANSACTION_ABORTABLE)]
)
def test_offsets_must_be_announced(open_service, version, code):
    """Of that very group, in this transaction."""
    open_service.add_offsets("other")
    assert open_service.stage(1, version=version) == code


# --- time -----------------------------------------------------------------------------------


def test_a_transaction_left_open_is_aborted_under_a_new_epoch(open_service):
    """Counted from its begin; what its producer does later is refused."""
    open_service.now_ms = TIMEOUT_MS - 1
    open_service.add(TopicPartition("c", 0))
    open_service.send(Tick())
    assert open_service.out == [SetTimer(TIMEOUT_MS)]
    open_service.now_ms = TIMEOUT_MS
    open_service.send(Tick())
    assert open_service.kinds() == [Persist, WriteMarkers]
    assert (open_service.out[1].commit, open_service.out[1].producer_epoch) == (False, 1)
    assert open_service.end(epoch=0) == Code.PRODUCER_FENCED
    assert open_service.written() == []


def test_failed_markers_are_tried_again(open_service):
    """The fate is sealed, so who ended it is told; the id is busy until the markers are there."""
    open_service.end()
    open_service.send(MarkersFailed())
    reply, timer = open_service.out
    assert reply.answer.code == Code.NONE
    assert open_service.add(A) == Code.CONCURRENT_TRANSACTIONS
    open_service.now_ms = timer.at_ms
    open_service.send(Tick())
    assert open_service.out == [WriteMarkers(100, 0, True, (A, B))]
    assert open_service.written() == []
    assert open_service.txn_record.state == "CompleteCommit"


def test_an_idle_id_is_forgotten_in_time():
    """Not one with a transaction open."""
    service = Service(expiry_ms=1_000)
    service.init()
    service.now_ms = 999
    service.send(Tick())
    assert service.out == [SetTimer(1_000)]
    service.now_ms = 1_000
    service.send(Tick())
    assert service.out == [Erase(), Forget()]
    assert service.txn_record is None
    service.send(Tick())
    assert service.out == []


# --- recovery -------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_sealed_transaction_is_finished_after_a_restart(open_service, commit):
    """With the same markers, to all its partitions; its offsets still wait for the end."""
    open_service.add_offsets()
    open_service.stage(3)
    open_service.end(commit=commit)
    open_service.restart()
    assert open_service.out == [WriteMarkers(100, 0, commit, (A, B))]
    open_service.written()
    assert bool(open_service.out[0].cursors) is commit
    assert open_service.end(commit=commit) == Code.NONE


def test_an_open_transaction_goes_on_after_a_restart(open_service):
    """Its clock too."""
    open_service.restart()
    assert open_service.out == [SetTimer(TIMEOUT_MS)]
    assert open_service.end() is None
    assert open_service.written() == [Code.NONE]


def test_ids_are_listed_by_state_and_producer(open_service):
    """As ListTransactions asks."""
    listing = open_service.transactions.listing
    assert [each for each, _ in listing()] == ["tx"]
    assert listing(["Ongoing"], [100]) == [("tx", open_service.txn_record)]
    assert listing(["Empty"]) == []
    assert listing((), [5]) == []
    assert open_service.transactions.count()["Ongoing"] == 1


def test_an_empty_transactional_id_is_no_id():
    """Null means a producer without transactions and is not asked here; empty is a mistake."""
    transactions = TransactionDirectory()
    init = InitProducer(token=1, version=5, timeout_ms=1, fresh_producer_id=1)
    assert transactions.handle("", init, 0)[0].answer.code == Code.INVALID_REQUEST
    end = EndTransaction(token=1, version=4, producer_id=1, producer_epoch=0, commit=True)
    assert transactions.handle("", end, 0)[0].answer.code == Code.INVALID_REQUEST


def test_an_id_that_was_never_durable_can_be_dropped(service):
    """If its first step could not be persisted, it was never there."""
    service.init()
    service.transactions.drop("tx")
    assert service.txn_record is None


def test_settings_default_to_the_config_tables():
    """One table of defaults, said twice, must not drift."""
    assert TransactionSettings.from_config(BrokerConfig()) == TransactionSettings()
