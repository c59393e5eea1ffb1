"""The rules of transactions; times are in ms from 0."""

from __future__ import annotations

import itertools
import json

import pytest

from cordwood.codes import Code
from cordwood.config import BrokerConfig
from cordwood.decide.instructions import Forget, Reply, SetTimer, Tick
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
    TransactionSettings,
    WriteMarkers,
)
from cordwood.decide.transactions.record import StagedOffsets
from cordwood.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
LAST_EPOCH = 2**15 - 2  # the last epoch given to a producer


class Service:
    """A service for one transactional ID that keeps the last persisted record."""

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
        """Handle an event; return its answer, or ``None`` while it waits."""
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
        """Return the code of an EndTransaction, or ``None`` while markers are being written."""
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
        """Report the markers as written and return the codes of the replies."""
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
    """A service with an open transaction on two partitions."""
    service.init()
    assert service.add(A, B) == Code.NONE
    return service


# --- a producer's epoch ---------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_id_and_epoch_0(service):
    """The new producer ID and epoch are persisted before the reply."""
    answer = service.init()
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)
    assert service.kinds() == [Persist, Reply, SetTimer]


def test_each_init_raises_the_epoch_and_fences_the_former(service):
    """Each InitProducerId increments the epoch and fences the previous producer."""
    service.init()
    assert service.init().producer_epoch == 1
    assert service.add(A, epoch=0) == Code.PRODUCER_FENCED
    assert service.add(A, epoch=1) == Code.NONE


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(service, timeout_ms):
    """A timeout outside the limits is refused and creates no transactional ID."""
    assert service.init(timeout_ms=timeout_ms).code == Code.INVALID_TRANSACTION_TIMEOUT
    assert service.txn_record is None


def test_a_producer_may_raise_its_own_epoch(service):
    """From InitProducerId 3 on, a producer may increment its own epoch; a retry is idempotent."""
    service.init()
    assert service.init(100, 0).producer_epoch == 1
    assert service.init(100, 0).producer_epoch == 1
    assert service.init(100, 1).producer_epoch == 2
    assert service.init(100, 0).code == Code.PRODUCER_FENCED


def test_a_producer_that_was_replaced_cannot_raise_its_epoch(service):
    """A replaced producer cannot increment its epoch; older clients get a code they know."""
    service.init()
    service.init()
    assert service.init(100, 0).code == Code.PRODUCER_FENCED
    assert service.init(100, 0, version=3).code == Code.INVALID_PRODUCER_EPOCH
    assert service.init(77, 1).code == Code.PRODUCER_FENCED


def test_a_producer_the_broker_forgot_is_taken_as_new(service):
    """An unknown transactional ID gets a fresh producer ID, whatever the client claims."""
    answer = service.init(55, 7)
    assert (answer.code, answer.producer_id, answer.producer_epoch) == (Code.NONE, 100, 0)


@pytest.mark.parametrize("says", [True, False])
def test_exhausted_epochs_bring_a_new_producer_id(service, says):
    """After the last epoch the producer gets a new ID; a retry returns the same one."""
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
    """InitProducerId aborts an open transaction under a new epoch, and the client must retry."""
    assert open_service.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_service.kinds() == [Persist, WriteMarkers, Reply]
    assert open_service.out[1] == WriteMarkers(100, 1, False, (A, B))
    assert open_service.init().code == Code.CONCURRENT_TRANSACTIONS
    assert open_service.end(epoch=0) == Code.PRODUCER_FENCED
    assert open_service.written() == []
    assert open_service.init().producer_epoch == 2


def test_fencing_with_the_last_epoch_still_works(open_service):
    """The last epoch is reserved for fencing; after it, the producer ID changes."""
    _set_epoch(open_service, LAST_EPOCH)
    open_service.init()
    assert open_service.out[1].producer_epoch == LAST_EPOCH + 1
    open_service.written()
    assert open_service.init().producer_epoch == 0


def test_a_stale_producer_cannot_abort_its_successors_transaction(service):
    """A producer with a stale epoch cannot abort its successor's transaction."""
    service.init()
    service.init()
    service.add(A, epoch=1)
    assert service.init(100, 0).code == Code.PRODUCER_FENCED
    assert service.txn_record.state == "Ongoing"


# --- adding and ending ----------------------------------------------------------------------


def test_partitions_are_durable_before_they_are_confirmed(service):
    """Added partitions are persisted before the reply, so a crash leaves none without a marker."""
    service.init()
    service.add(A)
    assert service.kinds() == [Persist, Reply, SetTimer]
    service.add(A, B)
    assert service.kinds() == [Persist, Reply]
    service.add(A)
    assert service.kinds() == [Reply]  # nothing new to persist
    assert service.txn_record.partitions == {A, B}


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_persisted_then_marked_then_completed_then_answered(open_service, commit):
    """An end persists the decision, writes markers, persists the completion, then replies."""
    assert open_service.end(commit=commit) is None
    assert open_service.kinds() == [Persist, WriteMarkers]
    assert open_service.disk["state"] == ("PrepareCommit" if commit else "PrepareAbort")
    assert open_service.out[1] == WriteMarkers(100, 0, commit, (A, B))
    assert open_service.written() == [Code.NONE]
    assert open_service.kinds() == [Persist, Reply, SetTimer]
    assert open_service.disk["state"] == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_again_is_fine_and_the_other_is_not(open_service, commit):
    """A repeated end is idempotent, and the opposite end is refused.

    While markers are written, a repeated end returns CONCURRENT_TRANSACTIONS.
    """
    open_service.end(commit=commit)
    assert open_service.end(commit=commit) == Code.CONCURRENT_TRANSACTIONS
    assert open_service.end(commit=not commit) == Code.INVALID_TXN_STATE
    assert open_service.written() == [Code.NONE]
    assert open_service.end(commit=commit) == Code.NONE
    assert open_service.end(commit=not commit) == Code.INVALID_TXN_STATE


def test_nothing_can_be_ended_that_was_not_begun(service):
    """An end without an open transaction is refused."""
    service.init()
    assert service.end() == Code.INVALID_TXN_STATE


def test_a_transaction_being_ended_takes_nothing_more(open_service):
    """Adding to a transaction that is ending returns CONCURRENT_TRANSACTIONS."""
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
    """Before version 2, and in offset commits, fencing returns INVALID_PRODUCER_EPOCH."""
    assert open_service.add(A, epoch=7, version=version) == code
    assert open_service.add_offsets(epoch=7, version=version) == code
    assert open_service.end(epoch=7, version=version) == code
    assert open_service.stage(1, epoch=7) == Code.INVALID_PRODUCER_EPOCH


def test_another_producer_id_is_no_mapping(open_service):
    """A wrong producer ID or an unknown transactional ID returns INVALID_PRODUCER_ID_MAPPING."""
    assert open_service.add(A, producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert open_service.end(producer_id=7) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Service().add(A) == Code.INVALID_PRODUCER_ID_MAPPING
    assert Service().add(A, producer_id=-1, epoch=-1) == Code.INVALID_PRODUCER_ID_MAPPING


def test_a_batch_is_let_in_only_with_an_open_transaction_over_its_partition(open_service):
    """A batch needs an open transaction that includes its partition."""
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
    """Staged offsets are stored only when a commit completes; the last one of a partition wins."""
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
    """A transaction of offsets alone ends in one step, because it has no markers."""
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
    """A group's offsets can be staged only after AddOffsetsToTxn for that group."""
    open_service.add_offsets("other")
    assert open_service.stage(1, version=version) == code


# --- time -----------------------------------------------------------------------------------


def test_a_transaction_left_open_is_aborted_under_a_new_epoch(open_service):
    """A transaction that exceeds its timeout is aborted under a new epoch."""
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
    """Failed markers are retried; the end succeeds, but the ID is busy until they are written."""
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
    """An idle transactional ID is erased after ``expiry_ms``."""
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
    """After a restart, a decided transaction is completed with the same markers and offsets."""
    open_service.add_offsets()
    open_service.stage(3)
    open_service.end(commit=commit)
    open_service.restart()
    assert open_service.out == [WriteMarkers(100, 0, commit, (A, B))]
    open_service.written()
    assert bool(open_service.out[0].cursors) is commit
    assert open_service.end(commit=commit) == Code.NONE


def test_an_open_transaction_goes_on_after_a_restart(open_service):
    """After a restart, an open transaction continues with its original timeout."""
    open_service.restart()
    assert open_service.out == [SetTimer(TIMEOUT_MS)]
    assert open_service.end() is None
    assert open_service.written() == [Code.NONE]


def test_ids_are_listed_by_state_and_producer(open_service):
    """Transactional IDs can be listed by state and producer ID, as ListTransactions needs."""
    listing = open_service.transactions.listing
    assert [each for each, _ in listing()] == ["tx"]
    assert listing(["Ongoing"], [100]) == [("tx", open_service.txn_record)]
    assert listing(["Empty"]) == []
    assert listing((), [5]) == []
    assert open_service.transactions.count()["Ongoing"] == 1


def test_an_empty_transactional_id_is_no_id():
    """An empty transactional ID is refused with INVALID_REQUEST."""
    transactions = TransactionDirectory()
    init = InitProducer(token=1, version=5, timeout_ms=1, fresh_producer_id=1)
    assert transactions.handle("", init, 0)[0].answer.code == Code.INVALID_REQUEST
    end = EndTransaction(token=1, version=4, producer_id=1, producer_epoch=0, commit=True)
    assert transactions.handle("", end, 0)[0].answer.code == Code.INVALID_REQUEST


def test_an_id_that_was_never_durable_can_be_dropped(service):
    """A transactional ID whose first write failed can be dropped."""
    service.init()
    service.transactions.drop("tx")
    assert service.txn_record is None


def test_settings_default_to_the_config_tables():
    """The default transaction settings equal the defaults of the broker settings."""
    assert TransactionSettings.from_config(BrokerConfig()) == TransactionSettings()
