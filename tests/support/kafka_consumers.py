"""A consumer group member in three client libraries with one interface; and one in a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka

from support.kafka_clients import PATIENCE_S

SESSION_MS = 1500  # the brokers of these tests allow such a short timeout
SETTINGS = {"durability": "os", "group_min_session_timeout_ms": 500}


class ConfluentMember:
    """A member that uses librdkafka."""

    name = "confluent-kafka"

    def __init__(self, address, topic, group="g", *, instance=None, **config):
        """Subscribe; start from the beginning if nothing is committed."""
        options = {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            **({"group.instance.id": instance} if instance else {}),
            **config,
        }
        self.consumer = confluent_kafka.Consumer(options)
        self.consumer.subscribe([topic])

    def poll(self):
        """Return the values that arrive within a short time."""
        found = self.consumer.consume(100, timeout=0.1)
        assert not [m.error() for m in found if m.error()]
        return [m.value() for m in found]

    def partitions(self):
        """Return the assigned partitions."""
        return {tp.partition for tp in self.consumer.assignment()}

    def commit(self):
        """Commit the offsets of everything read, synchronously."""
        self.consumer.commit(asynchronous=False)

    def close(self):
        """Leave the group."""
        self.consumer.close()


class ConsumerMember(ConfluentMember):
    """A member that uses librdkafka with ``group.protocol=consumer``; it notes what it loses."""

    name = "confluent-kafka, KIP-848"

    def __init__(self, address, topic, group="g", *, instance=None, **config):
        """Subscribe; start from the beginning if nothing is committed."""
        said = {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            **({"group.instance.id": instance} if instance else {}),
            **config,
        }
        self.lost = []
        self.consumer = confluent_kafka.Consumer(said)
        self.consumer.subscribe([topic], on_revoke=self._note, on_lost=self._note)

    def _note(self, _, partitions):
        self.lost += partitions


class KafkaPythonMember:
    """A member that uses kafka-python."""

    name = "kafka-python"

    def __init__(self, address, topic, group="g", *, instance=None, **config):
        """Subscribe; start from the beginning if nothing is committed."""
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            **config,
        )

    def poll(self):
        """Return the values that arrive within a short time."""
        found = self.consumer.poll(100)
        return [record.value for records in found.values() for record in records]

    def partitions(self):
        """Return the assigned partitions."""
        return {tp.partition for tp in self.consumer.assignment()}

    def commit(self):
        """Commit the offsets of everything read, synchronously."""
        self.consumer.commit()

    def close(self):
        """Leave the group."""
        self.consumer.close()


class AioKafkaMember:
    """A member that uses aiokafka on its own event loop; it sends heartbeats while it is polled."""

    name = "aiokafka"

    def __init__(self, address, topic, group="g", *, instance=None, **config):
        """Subscribe; start from the beginning if nothing is committed."""
        self.runner = asyncio.Runner()

        async def start():
            self.consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=200,
                metadata_max_age_ms=500,
                **config,
            )
            await self.consumer.start()

        self.runner.run(start())

    def poll(self):
        """Return the values that arrive within a short time."""
        found = self.runner.run(self.consumer.getmany(timeout_ms=100))
        return [record.value for records in found.values() for record in records]

    def partitions(self):
        """Return the assigned partitions."""
        return {tp.partition for tp in self.consumer.assignment()}

    def commit(self):
        """Commit the offsets of everything read, synchronously."""
        self.runner.run(self.consumer.commit())

    def close(self):
        """Leave the group."""
        self.runner.run(self.consumer.stop())
        self.runner.close()


MEMBERS = (ConfluentMember, KafkaPythonMember, AioKafkaMember)


def read(members, count):
    """Read that many values, from any of the members."""
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} in time: {found}"
        for member in members:
            found += member.poll()
    return found


def settle(members, wanted):
    """Poll until ``wanted(partition sets)`` holds; no records may arrive meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted([member.partitions() for member in members]):
        assert time.monotonic() < deadline, [member.partitions() for member in members]
        for member in members:
            assert member.poll() == []


def shared(count):
    """Check that every partition is assigned once and every member has at least one."""

    def wanted(sets):
        return all(sets) and sorted(n for each in sets for n in each) == list(range(count))

    return wanted


class Child:
    """A group member in its own process that can be killed."""

    def __init__(self, address, topic, group="g", member_of=ConfluentMember):
        """Start a process that joins the group, reads until it is killed, and never commits."""
        name = member_of.__name__
        code = f"""
            from support.kafka_consumers import {name}
            member = {name}({address!r}, {topic!r}, {group!r})
            while True:
                member.poll()
        """
        tests = str(Path(__file__).parent.parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "PYTHONPATH": tests}
        )

    def kill(self):
        """Kill the process, so that it does not leave the group."""
        self.process.kill()
        self.process.wait()


def fill(address, topic, count, *, partitions=6, first=0):
    """Produce consecutive numbers to the partitions in turn."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def numbers(values):
    return sorted(map(int, values))
