"""Topics with several partitions by lines: every command addresses all of them or names one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice

import pytest

from cordwood.broker.subscription import SLICE_BYTES
from cordwood.client import Client, aio
from cordwood.client.kafka import KafkaClient
from cordwood.errors import InvalidPartitions
from cordwood.protocol.line.arguments import StartPosition
from cordwood.testing import Broker
from support.lines import Wire, until

COUNT = 3


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker whose topics get three partitions."""
    with Broker(durability="os", num_partitions=COUNT) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A control connection; ``orders`` has two records in partition 0, one in 1, none in 2."""
    with Wire(broker.control) as connection:
        assert connection.ask(b"REGISTER orders") == b"OK"
        for partition, payload in ((0, b"a1"), (0, b"a2"), (1, b"b1")):
            assert connection.ask(b"PUT orders:%d %b" % (partition, payload)) == b"OK"
        yield connection


def places(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the first field and the payload of each line."""
    return [(line.partition(b"|")[0], line.rpartition(b"|")[2]) for line in lines]


def test_get_ack_names_every_partition(wire: Wire):
    """GET_ACK of a topic lists ``partition:seq`` in order; of one partition it is one number."""
    assert wire.ask(b"GET_ACK orders") == b"ACK 0:2 1:1 2:0"
    assert wire.ask(b"GET_ACK orders:1") == b"ACK 1"


@pytest.mark.parametrize(
    ("command", "form"),
    [
        (b"GET_STATUS 1 orders", b"GET_STATUS 1 orders:0"),
        (b"ACK orders audit 1", b"ACK orders:0 audit 1"),
        (b"RESET orders audit 1", b"RESET orders:0 audit 1"),
        (b"SUBSCRIBE orders FROM 1", b"SUBSCRIBE orders:0 FROM 1"),
    ],
)
def test_a_seq_without_a_partition_is_refused_with_the_form_to_use(
    wire: Wire, command: bytes, form: bytes
):
    """A seq is of one partition, so a command with a seq must name one; the error shows how."""
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    output = wire.ask(command)
    assert output.startswith(b"ERR INVALID_PARTITIONS orders has 3 partitions")
    assert output.endswith(b"as in " + form)
    assert {row["seq"] for row in json.loads(wire.ask(b"READERS orders"))["readers"]} == {0}


def test_ack_moves_the_cursor_of_its_partition_only(wire: Wire):
    """ACK of one partition makes its records PROCESSED and leaves the others PENDING."""
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    assert wire.ask(b"ACK orders:0 audit 2") == b"OK"
    assert wire.ask(b"GET_STATUS 2 orders:0") == b"PROCESSED"
    assert wire.ask(b"GET_STATUS 1 orders:1") == b"PENDING"
    assert wire.ask(b"ACK orders:1 audit 2").startswith(
        b"ERR INVALID_REQUEST orders:1 ends at seq 1"
    )


def test_segments_go_when_every_partition_is_acknowledged(wire: Wire):
    """RECLAIM with ``consume`` drops a partition's segments once that partition is acknowledged."""
    assert wire.ask(b"CONFIGURE orders cleanup.policy=consume") == b"OK"
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    assert wire.ask(b"CUT orders") == b"OK 2"
    assert wire.ask(b"ACK orders:1 audit 1") == b"OK"
    assert wire.ask(b"RECLAIM orders") == b"OK 1"
    assert wire.ask(b"ACK orders:0 audit 2") == b"OK"
    assert wire.ask(b"RECLAIM orders") == b"OK 1"


def test_state_sums_up_every_partition_and_describes_one(wire: Wire):
    """STATE of the topic has a row for each partition; of one partition, its segments."""
    rows = json.loads(wire.ask(b"STATE orders"))["partitions"]
    assert [(row["partition"], row["next_seq"], row["current_segment"]) for row in rows] == [
        (0, 3, 1),
        (1, 2, 1),
        (2, 1, 1),
    ]
    assert [each["records"] for each in json.loads(wire.ask(b"STATE orders:1"))["segments"]] == [1]


def test_get_takes_from_the_partitions_in_turn(wire: Wire):
    """GET of a topic takes one record of each partition in turn, each record once."""
    taken = [wire.ask(b"GET orders AS audit") for _ in range(4)]
    assert taken == [b"OK a1", b"OK b1", b"OK a2", b"EMPTY"]
    assert wire.ask(b"GET orders:1 AS other") == b"OK b1"
    assert wire.ask(b"GET orders:1 AS other") == b"EMPTY"
    assert wire.ask(b"GET orders AS other") == b"OK a1"


def test_put_takes_the_partitions_in_turn_and_get_finds_the_order(wire: Wire):
    """PUT to a topic spreads records over its partitions; GET takes them back in that order."""
    for n in range(7):
        assert wire.ask(b"PUT spread %d" % n) == b"OK"
    assert wire.ask(b"GET_ACK spread") == b"ACK 0:3 1:2 2:2"
    assert [wire.ask(b"GET spread") for _ in range(7)] == [b"OK %d" % n for n in range(7)]


def test_reset_to_an_end_moves_every_partition(wire: Wire):
    """RESET to START or END needs no partition: it moves the cursors of all."""
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    assert wire.ask(b"RESET orders audit END") == b"OK"
    assert wire.ask(b"GET orders AS audit") == b"EMPTY"
    assert wire.ask(b"RESET orders audit START") == b"OK"
    assert [wire.ask(b"GET orders AS audit") for _ in range(3)] == [b"OK a1", b"OK b1", b"OK a2"]


def test_subscription_to_a_topic_labels_each_line_with_its_partition(wire: Wire, broker: Broker):
    """SUBSCRIBE of a topic sends ``partition:seq``; of one partition, plain seqs."""
    with Wire(broker.control) as other:
        output = other.send(b"SUBSCRIBE orders FROM_START\n").end().rest().splitlines()
    assert places(output) == [(b"0:1", b"a1"), (b"0:2", b"a2"), (b"1:1", b"b1")]
    output = wire.send(b"SUBSCRIBE orders:0 FROM 2\n").end().rest().splitlines()
    assert places(output) == [(b"2", b"a2")]


def test_subscription_follows_every_partition_from_the_reader_s_cursors(wire: Wire, broker: Broker):
    """A named reader's stream starts at its cursor in each partition and follows all of them."""
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    assert wire.ask(b"ACK orders:0 audit 1") == b"OK"
    with Wire(broker.control) as stream:
        assert places(stream.send(b"SUBSCRIBE orders AS audit\n").lines(2)) == [
            (b"0:2", b"a2"),
            (b"1:1", b"b1"),
        ]
        for partition in (2, 0, 1):
            assert wire.ask(b"PUT orders:%d new" % partition) == b"OK"
            (line,) = places(stream.lines(1))
            assert line == (b"%d:%d" % (partition, {2: 1, 0: 3, 1: 2}[partition]), b"new")


def test_a_busy_partition_does_not_keep_the_others_waiting(wire: Wire, broker: Broker):
    """Partitions take turns slice by slice: a record behind megabytes of another comes early."""
    for _ in range(40):
        assert wire.ask(b"PUT orders:0 " + b"x" * 100_000) == b"OK"
    with Wire(broker.control) as stream:
        output = stream.send(b"SUBSCRIBE orders FROM_START\n").end().rest().splitlines()
    labels = [line.partition(b"|")[0] for line in output]
    assert labels.index(b"1:1") < 2 * SLICE_BYTES // 100_000
    assert [label for label in labels if label != b"1:1"] == [b"0:%d" % n for n in range(1, 43)]


def test_subscription_ends_with_an_error_when_the_topic_gets_more_partitions(
    wire: Wire, broker: Broker
):
    """A stream that would miss a new partition says so instead; a stream of one goes on."""
    with Wire(broker.control) as stream, Wire(broker.control) as single:
        assert stream.send(b"SUBSCRIBE orders FROM_START\n").line().startswith(b"0:1|")
        assert single.send(b"SUBSCRIBE orders:2 FROM_START\n").ask(b"GET_ACK orders:2") == b"ACK 0"
        stream.lines(2)
        broker.run(lambda: broker.service.broker.topics.add_partitions("orders", COUNT + 1))
        assert wire.ask(b"PUT orders:2 c1") == b"OK"
        output = [stream.line()]
        if not output[0].startswith(b"ERR"):  # it was about to read this record
            output.append(stream.line())
        assert output[-1].startswith(b"ERR INVALID_PARTITIONS orders now has 4 partitions")
        assert single.line().startswith(b"1|")
        assert stream.send(b"SUBSCRIBE orders FROM_START\n").line().startswith(b"0:1|")


def test_blocking_client_reads_and_acknowledges_every_partition(wire: Wire, broker: Broker):
    """The client names partitions as an argument, and each line knows its own."""
    assert wire.ask(b"REGISTER orders AS audit") == b"OK"
    with Client(broker.control) as client:
        assert client.get_acks("orders") == {0: 2, 1: 1, 2: 0}
        assert client.get_ack("orders", partition=1) == 1
        with pytest.raises(InvalidPartitions, match="get_acks"):
            client.get_ack("orders")
        with client.subscribe("orders", reader="audit") as stream:
            for line in islice(stream, 3):
                client.ack("orders", "audit", line.seq, partition=line.partition)
        assert client.status(1, "orders", partition=1).word == "PROCESSED"
        client.reset("orders", "audit", StartPosition.START)
        client.put("orders", b"c1", partition=2)
        taken = client.get("orders", "audit", partition=2)
        assert taken is not None
        assert taken.payload == b"c1"
        with client.subscribe("orders", partition=1, from_seq=1) as stream:
            line = next(stream)
        assert (line.partition, line.seq, line.payload) == (1, 1, b"b1")


@pytest.mark.usefixtures("wire")
def test_async_client_reads_and_acknowledges_every_partition(broker: Broker):
    """The async client has the same arguments."""

    async def read() -> dict[int, int]:
        async with aio.Client(broker.control) as client:
            await client.register("orders", "audit")
            async with client.subscribe("orders", from_start=True, idle_timeout_s=1) as stream:
                async for line in stream:
                    await client.ack("orders", "audit", line.seq, partition=line.partition)
                    if (line.partition, line.seq) == (1, 1):
                        break
            return await client.get_acks("orders")

    assert asyncio.run(read()) == {0: 2, 1: 1, 2: 0}


def test_ingress_lines_have_one_partition_whatever_the_topic_has(broker: Broker):
    """GET_ACK and GET_STATUS without a topic refer to the partition that lines are written to."""
    with Wire(broker.ingress) as wire:
        wire.hello("p")
        wire.send(b"k|1|1|x\nk|1|2|y\n").acked(2)
    with Wire(broker.control) as wire:
        assert wire.ask(b"GET_ACK") == b"ACK 2"
        assert wire.ask(b"GET_STATUS 2") == b"PENDING"


@pytest.mark.usefixtures("wire")
def test_cat_prints_every_partition_or_the_one_that_is_named(broker: Broker):
    """``cordwood cat`` prints partitions one after the other; ``-p`` prints one, unlabelled."""

    def cat(*options: str) -> list[tuple[bytes, bytes]]:
        command = [sys.executable, "-m", "cordwood", "cat", "orders", "-b", broker.kafka, *options]
        return places(subprocess.run(command, check=True, capture_output=True).stdout.splitlines())

    with KafkaClient(broker.kafka) as client:
        until(lambda: len(client.partitions("orders")) == COUNT, "the topic is there")
    assert cat() == [(b"0:1", b"a1"), (b"0:2", b"a2"), (b"1:1", b"b1")]
    assert cat("-p", "1") == [(b"1", b"b1")]
