"""Every command of the control listener and its errors, as text lines and as frames."""

from __future__ import annotations

import json

import pytest

from cordwood.client import Client
from cordwood.protocol.line.commands import COMMANDS
from cordwood.testing import Broker
from support.lines import Wire, ask, numbered

# (command, start of the reply), in order, on one connection
TALK = [
    (b"REGISTER jobs AS audit", b"OK"),
    (b"PUT jobs one", b"OK"),
    (b"PUT jobs two words ", b"OK"),
    (b"GET_ACK jobs", b"ACK 2"),
    (b"GET_STATUS 1 jobs", b"PENDING"),
    (b"GET_STATUS 3 jobs", b"UNKNOWN"),
    (b"GET jobs AS audit", b"OK one"),
    (b"GET_STATUS 1 jobs", b"PROCESSED"),
    (b"get jobs as audit", b"OK two words "),
    (b"GET jobs AS audit", b"EMPTY"),
    (b"GET jobs AS other", b"OK one"),
    (b"RESET jobs audit START", b"OK"),
    (b"GET jobs AS audit", b"OK one"),
    (b"RESET jobs audit 2", b"OK"),
    (b"ACK jobs audit 2", b"OK"),
    (b"RESET jobs audit END", b"OK"),
    (b"GET jobs AS audit", b"EMPTY"),
    (b"READERS jobs", b'{"readers":['),
    (b"DRAIN other jobs", b"OK 1"),
    (b"REMOVE jobs other", b"OK"),
    (b"CONFIGURE jobs segment.entries=10 retention.ms=1000", b"OK"),
    (b"CUT jobs", b"OK 1"),
    (b"CUT jobs", b"OK 0"),
    (b"RECLAIM jobs", b"OK 0"),
    (b"STATE jobs", b'{"topic":"jobs"'),
    (b"METRICS", b'{"cordwood_'),
    (b"SET quotes strip", b"OK"),
    (b'PUT walrus "application started"', b"OK"),
    (b"GET walrus", b"OK application started"),
    (b"HELP", b"GET_ACK [<topic>[:<partition>]]"),
]
WRONG = [
    (b"FETCH jobs", b"ERR UNKNOWN_COMMAND 'FETCH' is not a command"),
    (b"GET_AKC", b"ERR UNKNOWN_COMMAND 'GET_AKC' is not a command; did you mean GET_ACK?"),
    (b"GET_ACK nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"GET_STATUS", b"ERR INVALID_REQUEST "),
    (b"GET_STATUS zero jobs", b"ERR INVALID_REQUEST 'zero' is not a seq"),
    (b"SUBSCRIBE nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"SUBSCRIBE jobs FROM 99", b"ERR OFFSET_OUT_OF_RANGE jobs has seq 1 to 1"),
    (b"SUBSCRIBE jobs FROM", b"ERR INVALID_REQUEST FROM needs a seq"),
    (b"ACK jobs nobody 1", b"ERR UNKNOWN_READER no reader nobody"),
    (b"ACK jobs audit 2", b"ERR INVALID_REQUEST jobs ends at seq 1"),
    (b"REGISTER bad/name", b"ERR INVALID_TOPIC 'bad/name'"),
    (b"PUT jobs", b"ERR INVALID_REQUEST a topic, one space and a payload"),
    (b"PUT jobs:1 x", b"ERR UNKNOWN_TOPIC topic jobs has no partition 1"),
    (b"PUT nowhere:0 x", b"ERR UNKNOWN_TOPIC there is no topic nowhere"),
    (b"GET jobs:x", b"ERR INVALID_REQUEST 'x' is not a partition"),
    (b"REGISTER jobs:0", b"ERR INVALID_TOPIC 'jobs:0'"),
    (b"GET nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"STATE nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"METRICS please", b"ERR INVALID_REQUEST "),
    (b"READERS nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"RESET jobs audit 9", b"ERR OFFSET_OUT_OF_RANGE "),
    (b"REMOVE jobs nobody", b"ERR UNKNOWN_READER "),
    (b"DRAIN nobody jobs", b"ERR UNKNOWN_READER "),
    (b"CONFIGURE jobs no.such=1", b"ERR INVALID_CONFIG "),
    (b"CONFIGURE jobs segment.bytes=x retention.ms=1", b"ERR INVALID_CONFIG "),
    (b"CUT nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"RECLAIM nowhere", b"ERR UNKNOWN_TOPIC "),
    (b"SET colour red", b"ERR INVALID_REQUEST 'colour' is not a setting of the connection"),
    (b"SET quotes off", b"ERR INVALID_REQUEST quotes is keep or strip, not 'off'; send SET quotes"),
    (b"HELP me", b"ERR INVALID_REQUEST "),
    (b"QUIT now", b"ERR INVALID_REQUEST "),
    (b"\xff\xfe", b"ERR UNKNOWN_COMMAND "),
    (b"GET_ACK \xff", b"ERR INVALID_TOPIC "),
]


class Text:
    """Sends commands as text lines."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def ask(self, command: bytes) -> bytes:
        reply = self.wire.ask(command)
        while command == b"HELP" and self.wire.line():
            pass
        return reply


class Framed(Text):
    """Sends commands as frames."""

    def ask(self, command: bytes) -> bytes:
        return self.wire.frame(command).read_frame()


@pytest.mark.parametrize("talk", [Text, Framed])
def test_every_command_is_answered_in_the_framing_it_came_in(broker: Broker, talk: type[Text]):
    """Every command on one connection gets the documented reply, in its own framing."""
    with Wire(broker.control) as wire:
        connection = talk(wire)
        for command, reply in TALK:
            assert (command, connection.ask(command)[: len(reply)]) == (command, reply)
        assert connection.ask(b"QUIT") == b"OK"
        assert wire.is_closed()
    asked = {command.split()[0].upper().decode() for command, _ in TALK}
    assert asked | {"SUBSCRIBE", "QUIT"} == set(COMMANDS)


@pytest.mark.parametrize("talk", [Text, Framed])
def test_every_error_is_one_line_and_the_connection_goes_on(broker: Broker, talk: type[Text]):
    """A wrong command gets a one-line error and the connection stays usable."""
    with Wire(broker.control) as wire:
        connection = talk(wire)
        connection.ask(b"REGISTER jobs AS audit")
        connection.ask(b"PUT jobs one")
        for command, reply in WRONG:
            output = connection.ask(command)
            assert (command, output[: len(reply)]) == (command, reply)
            assert b"\n" not in output
        assert connection.ask(b"GET_ACK jobs") == b"ACK 1"


def test_pipelined_commands_are_answered_in_order(broker: Broker):
    """A thousand pipelined commands, more than the read-ahead limit, are answered in order."""
    with Wire(broker.control) as wire:
        wire.ask(b"REGISTER jobs")
        wire.send(b"".join(b"GET_STATUS %d jobs extra\nGET_ACK jobs\n" % n for n in range(1, 501)))
        replies = wire.lines(1000)
    assert all(reply.startswith(b"ERR INVALID_REQUEST") for reply in replies[::2])
    assert set(replies[1::2]) == {b"ACK 0"}


def test_pipelined_puts_are_kept_in_order(broker: Broker):
    """Pipelined PUTs with large payloads are all stored, in order."""
    payload = b"x" * 200_000
    with Wire(broker.control) as wire:
        for n in range(20):
            wire.send(b"PUT big %d-%b\n" % (n, payload))
        assert set(wire.lines(20)) == {b"OK"}
        for n in range(20):
            assert wire.ask(b"GET big").partition(b"-")[0] == b"OK %d" % n


def test_payload_in_a_frame_is_kept_byte_for_byte(broker: Broker):
    """Frames keep newlines, NUL and invalid UTF-8 unchanged; text replies escape them."""
    payload = bytes(range(256)) * 3
    with Wire(broker.control) as wire:
        assert wire.frame(b"PUT raw " + payload).read_frame() == b"OK"
        assert wire.frame(b"GET raw AS a").read_frame() == b"OK " + payload
    output = ask(broker.control, "GET raw AS b")
    assert output.startswith(rb"OK \e")
    assert output[5:].replace(rb"\n", b"\n").replace(rb"\\", b"\\") == payload


def test_command_cut_short_by_the_end_is_not_run(broker: Broker):
    """A command without its newline at the end of the connection is not executed.

    Otherwise a truncated ``REMOVE t audit2`` could run as ``REMOVE t audit``.
    """
    ask(broker.control, "REGISTER jobs AS audit")
    with Wire(broker.control) as wire:
        output = wire.send(b"REMOVE jobs audit").end().rest()
    assert output.startswith(b"ERR PROTOCOL the connection ended inside a command")
    assert b"audit" in ask(broker.control, "READERS jobs")


def test_command_above_the_limit_is_refused_and_the_next_one_runs(broker: Broker):
    """A command above the limit is skipped with LINE_TOO_LONG, and the next one runs."""
    with Wire(broker.control) as wire:
        wire.send(b"PUT t " + b"x" * 3_000_000 + b"\nGET_ACK nowhere\n")
        assert wire.line().startswith(b"ERR LINE_TOO_LONG the command has 3000006 bytes")
        assert wire.line().startswith(b"ERR UNKNOWN_TOPIC")


def test_state_counts_segments_as_walrus_does(broker: Broker):
    """STATE lists sealed segments with counts, the current segment and the last sealed offset."""
    with Wire(broker.control) as wire:
        wire.ask(b"REGISTER logs")
        wire.ask(b"CONFIGURE logs segment.entries=10")
        for n in range(25):
            assert wire.ask(b"PUT logs %d" % n) == b"OK"
        state = json.loads(wire.ask(b"STATE logs"))
    assert (state["current_segment"], state["sealed_segments"]) == (3, {"1": 10, "2": 10})
    assert state["last_sealed_entry_offset"] == 20
    assert state["leader_node"] == 1


def test_state_remembers_segments_that_reclaim_has_dropped(broker: Broker):
    """After RECLAIM, STATE still has every segment's number, count and leader.

    A cursor is shown as Walrus's segment and entries delivered in it, beside the offset.
    """
    with Wire(broker.control) as wire:
        wire.ask(b"REGISTER logs AS audit")
        wire.ask(b"CONFIGURE logs segment.entries=10 cleanup.policy=consume")
        for n in range(25):
            assert wire.ask(b"PUT logs %d" % n) == b"OK"
        assert wire.ask(b"ACK logs audit 13") == b"OK"
        assert wire.ask(b"RECLAIM logs") == b"OK 1"
        state = json.loads(wire.ask(b"STATE logs"))
    assert (state["current_segment"], state["sealed_segments"]) == (3, {"1": 10, "2": 10})
    assert state["segment_leaders"] == {"1": 1, "2": 1, "3": 1}
    assert [(each["id"], each["base_seq"], each["state"]) for each in state["segments"]] == [
        (1, 1, "reclaimed"),
        (2, 11, "sealed"),
        (3, 21, "active"),
    ]
    assert state["cursors"] == {"audit": {"segment": 2, "delivered": 3, "offset": 13}}
    assert state["log_start_seq"] == 11


def test_topics_are_not_created_when_that_is_off():
    """With auto.create.topics=false PUT fails and names REGISTER, which creates the topic."""
    with Broker(kafka="off", durability="os", auto_create_topics=False) as broker:
        output = ask(broker.control, "PUT jobs one")
        assert output.startswith(b"ERR UNKNOWN_TOPIC topic jobs does not exist")
        assert b"REGISTER jobs" in output
        assert ask(broker.control, "REGISTER jobs") == b"OK"
        assert ask(broker.control, "PUT jobs one") == b"OK"


def test_ingress_lines_are_seen_by_get_ack_without_a_topic(broker: Broker):
    """GET_ACK without a topic refers to the ingress topic."""
    with Wire(broker.ingress) as wire:
        wire.hello("a")
        wire.send(numbered(1, 6)).acked(5)
    assert ask(broker.control, "GET_ACK") == b"ACK 5"


def test_get_ack_of_a_broker_without_lines_is_zero():
    """GET_ACK returns 0, not an error, while no line is stored."""
    with Broker(kafka="off", durability="os") as broker, Client(broker.control) as client:
        assert client.get_ack() == 0
