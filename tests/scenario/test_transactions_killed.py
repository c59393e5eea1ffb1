"""Kill the broker while a program copies records with transactions that include its offsets.

The program dies too, in the middle of a transaction: its records may be in the log, and its offsets
staged, when its successor starts, ends that transaction and continues at the group's committed
offset. A reader of committed records must find every number of the source exactly once in the
destination, and the group's committed offset must be the source's end.

``metadata.recovery.strategy=none``: when all brokers are away, librdkafka otherwise starts from its
bootstrap servers again, drops the broker that it knew as the group's coordinator, and then waits
for it forever, whatever the timeout (confluentinc/librdkafka issues 5511 and 5456; seen with 2.14
to 2.16). docs/compatibility.md gives users the same advice.
"""

from __future__ import annotations

import random
import threading

import confluent_kafka
import pytest

from cordwood.lab.scenarios.stage import Child
from support.kafka_clients import PATIENCE_S, create_topic
from support.lines import select_nothing, until

ROUNDS = 8
RECORDS = 4000
PER_TRANSACTION = 20
GROUP = "copiers"
CLIENT = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class Died(Exception):
    """The program died in the middle of a transaction."""


class Copier:
    """A thread that copies ``source`` to ``copy`` exactly once and restarts after any error."""

    def __init__(self, address: str, chance: random.Random) -> None:
        self._address = address
        self._chance = chance
        self._dying = threading.Event()
        self.deaths = 0
        self.committed = 0  # transactions
        self.reached = 0  # offset in the source that is committed
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def die(self) -> None:
        """Die in one of the next transactions, before or after its offsets are staged."""
        self._dying.set()

    def _perhaps_die(self) -> None:
        if self._dying.is_set() and self._chance.random() < 0.5:
            self._dying.clear()
            raise Died

    def _run(self) -> None:
        try:
            while not self._ending.is_set() and self.reached < RECORDS:
                self._copy()
        except BaseException as error:  # noqa: BLE001 - the test's own thread asks for it
            self.failure = error

    def _copy(self) -> None:
        """Run the program from the group's committed offset until something fails."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._address, "transactional.id": "copier", **CLIENT}
        )
        settings = {"enable.auto.commit": False, "group.id": GROUP, **CLIENT}
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._address, **settings})
        try:
            producer.init_transactions(PATIENCE_S)
            source = confluent_kafka.TopicPartition("source", 0)
            (at,) = consumer.committed([source], timeout=PATIENCE_S)
            consumer.assign([confluent_kafka.TopicPartition("source", 0, max(at.offset, 0))])
            self.reached = max(at.offset, 0)
            while not self._ending.is_set() and self.reached < RECORDS:
                self._transact(producer, consumer)
        except confluent_kafka.KafkaException:
            pass  # the next run fences this one and continues at the committed offset
        except Died:
            self.deaths += 1  # the next run continues in the same way
        finally:
            consumer.close()

    def _transact(self, producer, consumer) -> None:
        messages = [m for m in consumer.consume(PER_TRANSACTION, 1.0) if m.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce("copy", message.value())
        producer.flush(PATIENCE_S)
        self._perhaps_die()
        end = messages[-1].offset() + 1
        where = [confluent_kafka.TopicPartition("source", 0, end)]
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(where, group, PATIENCE_S)
        self._perhaps_die()
        producer.commit_transaction(PATIENCE_S)
        self.reached = end
        self.committed += 1


def fill(address: str) -> None:
    for name in ("source", "copy"):
        create_topic(address, name)
    producer = confluent_kafka.Producer({"bootstrap.servers": address, **CLIENT})
    for number in range(RECORDS):
        producer.produce("source", b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0


def read_committed(address: str) -> list[int]:
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "checker", **settings, **CLIENT}
    )
    consumer.assign([confluent_kafka.TopicPartition("copy", 0, 0)])
    numbers = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        numbers.append(int(message.value()))
    consumer.close()
    return numbers


def committed_offset(address: str) -> int:
    """Return the group's committed offset in the source, as a new consumer gets it."""
    settings = {"bootstrap.servers": address, "group.id": GROUP, **CLIENT}
    consumer = confluent_kafka.Consumer(settings)
    asked = [confluent_kafka.TopicPartition("source", 0)]
    (found,) = consumer.committed(asked, timeout=PATIENCE_S)
    consumer.close()
    return int(found.offset)


@pytest.mark.timeout(240)
def test_transactions_with_offsets_are_exactly_once_across_kills(tmp_path):
    """A transaction and its offsets are committed together, whenever the broker dies."""
    chance = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    broker = Child(tmp_path / "data", {})
    address = broker.addresses["kafka"]
    fill(address)
    copier = Copier(address, random.Random(seed + 1))
    try:
        for nth in range(ROUNDS):
            goal = min(copier.committed + 3, RECORDS // PER_TRANSACTION)
            until(lambda goal=goal: copier.committed >= goal, "more transactions are committed")
            copier.die()  # before the broker does, at the same time, or after it
            select_nothing(chance.random() * 0.1)  # the kill comes at a random time
            broker.kill()
            broker = Child(tmp_path / "data", {"kafka": address})
            until(lambda nth=nth: copier.deaths > nth, "the program died too")
        until(lambda: copier.reached == RECORDS or copier.failure, "all is copied")
        assert copier.failure is None
        broker.kill()  # the last transaction was acknowledged too
        broker = Child(tmp_path / "data", {"kafka": address})
        assert read_committed(address) == list(range(RECORDS))
        assert committed_offset(address) == RECORDS
    finally:
        copier.end()
        broker.kill()
