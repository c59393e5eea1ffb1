"""The Java client of Kafka 4: producer, consumer, transactions and admin, as its users use them."""

from __future__ import annotations

import pytest

from support.ecosystem import java, needs_program
from support.kafka_clients import create_topic

pytestmark = needs_program("client", compiler=True)


@pytest.fixture
def client(broker, compiled, tmp_path):
    """A function that runs ``Client.java`` and returns the lines it prints."""

    def run(*words: str) -> list[str]:
        classpath = compiled("Client", "client")
        with java(
            classpath, "Client", broker.kafka, *words, log=tmp_path / "client.log"
        ) as program:
            return program.finish()

    return run


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_records_and_groups_round_trip(broker, client, protocol):
    """Keys, values and headers come back in order; a group goes on at its committed offset."""
    create_topic(broker.kafka, "records")
    sent = [f"k{number % 10} v{number} {number}" for number in range(1000)]
    client("produce", "records", "1000", "zstd")
    assert client("consume", "records", "1000", "readers", protocol) == sent
    client("produce", "records", "7", "lz4")
    assert client("consume", "records", "7", "readers", protocol) == sent[:7]


def test_transactions_commit_records_and_offsets_together(broker, client):
    """Aborted transactions leave neither records for ``read_committed`` nor group offsets."""
    create_topic(broker.kafka, "from")
    create_topic(broker.kafka, "to")
    client("produce", "from", "100", "none")
    printed = client("transact", "from", "to")
    assert printed == [*(f"v{number}" for number in range(100)), "offset 100"]


def test_admin_changes_what_it_says(client):
    """The admin client creates, grows, configures, trims and deletes; groups can be moved."""
    assert client("admin", "managed") == [
        "partitions 3",
        "retention.ms 600000",
        "segment.bytes 1048576",
        "offsets 2 5",
        "group {moved=3}",
        "groups 0",
        "nodes 1",
        "topics false",
    ]
