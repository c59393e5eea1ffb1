"""The control protocol: its commands, and errors that do not close the connection."""

import pytest

from cordwood.errors import (
    BadFrame,
    InvalidTopic,
    LineTooLong,
    ProtocolError,
    RequestError,
    UnknownCommand,
)
from cordwood.model import TopicPartition
from cordwood.protocol.line.arguments import StartPosition
from cordwood.protocol.line.commands import (
    COMMANDS,
    Ack,
    Configure,
    Cut,
    Drain,
    Get,
    GetAck,
    GetStatus,
    Help,
    Metrics,
    Put,
    Quit,
    Readers,
    Reclaim,
    Register,
    Remove,
    Reset,
    Set,
    State,
    Subscribe,
    encode_command,
    encode_help,
    parse_command,
)
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.framing import Framing

frame = Framing.FRAMES.encode

EXAMPLES = [
    (b"GET_ACK", GetAck()),
    (b"get_ack orders\r", GetAck("orders")),
    (b"GET_ACK orders:2", GetAck(TopicPartition("orders", 2))),
    (b"GET_STATUS 7", GetStatus(7)),
    (b"GET_STATUS 7 orders:0", GetStatus(7, TopicPartition("orders", 0))),
    (b"PUT orders:1 a:b", Put(TopicPartition("orders", 1), b"a:b")),
    (b"ACK orders:12 audit 3", Ack(TopicPartition("orders", 12), "audit", 3)),
    (b"GET_STATUS 7 orders", GetStatus(7, "orders")),
    (b"SUBSCRIBE orders", Subscribe("orders")),
    (b"SUBSCRIBE orders FROM_START", Subscribe("orders", StartPosition.START)),
    (b"subscribe orders from 12 as audit", Subscribe("orders", 12, "audit")),
    (b"SUBSCRIBE orders AS audit", Subscribe("orders", StartPosition.CURSOR, "audit")),
    (b"SUBSCRIBE orders FROM_START AS audit", Subscribe("orders", StartPosition.START, "audit")),
    (b"ACK orders audit 12", Ack("orders", "audit", 12)),
    (b"ACK orders audit 0", Ack("orders", "audit", 0)),
    (b"REGISTER orders", Register("orders")),
    (b"REGISTER orders AS audit", Register("orders", "audit")),
    (b"PUT orders hello", Put("orders", b"hello")),
    (b"put orders  two  spaces \t ", Put("orders", b" two  spaces \t ")),
    (b"PUT orders ", Put("orders", b"")),
    (b"PUT orders \xff\0\n\r", Put("orders", b"\xff\0\n\r")),
    (b"GET orders", Get("orders")),
    (b"GET orders AS audit", Get("orders", "audit")),
    (b"STATE orders", State("orders")),
    (b"METRICS", Metrics()),
    (b"READERS", Readers()),
    (b"READERS orders", Readers("orders")),
    (b"RESET orders audit 5", Reset("orders", "audit", 5)),
    (b"RESET orders audit start", Reset("orders", "audit", StartPosition.START)),
    (b"RESET orders audit END", Reset("orders", "audit", StartPosition.END)),
    (b"REMOVE orders audit", Remove("orders", "audit")),
    (
        b"CONFIGURE orders retention.ms=-1 cleanup.policy=compact,delete",
        Configure("orders", (("retention.ms", "-1"), ("cleanup.policy", "compact,delete"))),
    ),
    (b"CONFIGURE orders a=b=c d=", Configure("orders", (("a", "b=c"), ("d", "")))),
    (b"CUT orders", Cut("orders")),
    (b"DRAIN r", Drain("r")),
    (b"DRAIN r orders", Drain("r", "orders")),
    (b"RECLAIM", Reclaim()),
    (b"RECLAIM orders", Reclaim("orders")),
    (b"SET quotes strip", Set(strips_quotes=True)),
    (b"set QUOTES Keep", Set(strips_quotes=False)),
    (b"HELP", Help()),
    (b" quit ", Quit()),
]


@pytest.mark.parametrize(("body", "request_"), EXAMPLES)
def test_each_command_parses_in_each_of_its_forms(body, request_):
    """Each command is parsed in each of its forms, in any letter case."""
    assert parse_command(body) == request_


@pytest.mark.parametrize("request_", [request for _, request in EXAMPLES])
def test_what_a_client_encodes_is_what_a_broker_parses(request_):
    """Every encoded request is parsed to the same request."""
    assert parse_command(encode_command(request_)) == request_


@pytest.mark.parametrize(
    "request_",
    [
        Get("t AS r"),
        GetAck(""),
        Register("t", ""),
        Remove("t", "r s"),
        GetStatus(0),
        State("t\nu"),
        Ack("t", "r", -1),
        Reset("t", "r", StartPosition.CURSOR),
        Subscribe("t", StartPosition.END),
        Get("t", "\ud800"),
        Put("a b", b"c"),
        Get("t:1"),
        Get(TopicPartition("t", -1)),
    ],
)
def test_a_request_that_would_say_something_else_is_not_encoded(request_):
    """A request whose names would change its meaning when parsed is not encoded."""
    with pytest.raises(RequestError):
        encode_command(request_)


def test_every_command_of_the_table_has_an_example_above():
    """Every command of the table has an example above."""
    assert {body.split()[0].upper().decode() for body, _ in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize(
    "body",
    [
        b"GET_STATUS",
        b"GET_STATUS 0",
        b"GET_STATUS -1",
        b"GET_STATUS \xd9\xa1",
        b"GET_STATUS 1 t u",
        b"GET_STATUS " + b"9" * 19,
        b"GET_STATUS " + b"9" * 5000,
        b"SUBSCRIBE",
        b"SUBSCRIBE t FROM",
        b"SUBSCRIBE t FROM x",
        b"SUBSCRIBE t AS",
        b"SUBSCRIBE t FROM 1 BY r",
        b"SUBSCRIBE t r",
        b"SUBSCRIBE t AS r FROM 1",
        b"ACK t r",
        b"ACK t r x",
        b"REGISTER",
        b"PUT",
        b"PUT t",
        b"GET",
        b"GET t r",
        b"GET t AS \xff",
        b"GET t AS " + b"r" * 250,
        b"STATE",
        b"METRICS x",
        b"RESET t r",
        b"RESET t r 0",
        b"RESET t r CURSOR",
        b"REMOVE t",
        b"CONFIGURE t",
        b"CONFIGURE t x",
        b"CONFIGURE t =x",
        b"CUT",
        b"DRAIN",
        b"RECLAIM t u",
    ],
)
def test_a_misused_command_is_refused_with_its_usage(body):
    """A command with wrong arguments is refused with its usage."""
    usage = COMMANDS[body.split()[0].decode()].usage
    with pytest.raises(RequestError) as caught:
        parse_command(body)
    assert f"send {usage}" in str(caught.value)
    assert str(caught.value).isascii()


@pytest.mark.parametrize("topic", [b"a/b", b"..", b"\xff\xfe", "é".encode(), b"t" * 250, b"a|b"])
def test_what_cannot_name_a_topic_is_refused_by_every_command(topic):
    """Every command refuses an invalid topic name, including one that is not UTF-8."""
    for body in (b"PUT %b x", b"GET %b", b"SUBSCRIBE %b", b"GET_ACK %b", b"ACK %b r 1"):
        with pytest.raises(InvalidTopic, match="is not a valid topic name"):
            parse_command(body % topic)


def test_an_unknown_command_is_refused_with_the_nearest():
    """An unknown command is refused with the nearest command, or with a hint to HELP."""
    with pytest.raises(UnknownCommand, match="did you mean SUBSCRIBE"):
        parse_command(b"SUBSCRIB t")
    with pytest.raises(UnknownCommand, match=r"'\\xff\\x00' is not a command; HELP"):
        parse_command(b"\xff\x00 t")


def test_help_lists_the_whole_table_and_ends_with_an_empty_line():
    """HELP lists all commands and ends with an empty line."""
    text = Framing.TEXT.encode(encode_help()).decode()
    assert text.endswith("\n\n")
    assert [line.split("  ")[0] for line in text.splitlines()[:-1]] == [
        command.usage for command in COMMANDS.values()
    ]


def requests(connection: ControlConnection) -> list[object]:
    found = list(iter(connection.next_request, None))
    return [type(e.error) if isinstance(e, Refused) else e for e in found]


def test_pipelined_commands_come_in_order_and_errors_keep_their_place():
    """Pipelined commands are returned in order. A refused one keeps its position as an error."""
    connection = ControlConnection(100)
    connection.receive(b"GET_ACK\n\nNOPE\r\nPUT a b \n" + b"x" * 101 + b"\nQUIT\nHEL")
    assert requests(connection) == [GetAck(), UnknownCommand, Put("a", b"b "), LineTooLong, Quit()]


def test_pipelined_frames_come_in_order_and_errors_keep_their_place():
    """Every pipelined frame gets a reply in order, even an empty or an oversized one."""
    connection = ControlConnection(100)
    bodies = [b"GET_ACK", b"", b"PUT a \n\0", b"x" * 101, b"QUIT"]
    connection.receive(b"".join(map(frame, bodies)))
    assert requests(connection) == [
        GetAck(),
        UnknownCommand,
        Put("a", b"\n\0"),
        LineTooLong,
        Quit(),
    ]
    assert connection.encode(b"OK") == b"\x02\0\0\0OK"


@pytest.mark.parametrize(
    "sent", [b"REMOVE orders audit", b"QU", frame(b"REMOVE orders audit")[:-2]]
)
def test_a_command_cut_short_by_the_end_is_refused_and_not_run(sent):
    """A command that is cut off by the end of the connection is refused, not run.

    ``REMOVE orders audit2`` cut short must not remove ``audit``.
    """
    connection = ControlConnection(100)
    connection.receive(sent)
    connection.receive_eof()
    assert requests(connection) == [ProtocolError]
    assert connection.next_request() is None


@pytest.mark.parametrize("sent", [b"x" * 200, b"\xc8\0\0\0xx"])
def test_a_too_long_command_cut_short_by_the_end_is_refused_once(sent):
    """An oversized command at the end of the connection is refused only once."""
    connection = ControlConnection(100)
    connection.receive(sent)
    connection.receive_eof()
    refused = connection.next_request()
    assert isinstance(refused.error, LineTooLong)
    assert connection.next_request() is None


def test_an_end_between_commands_is_quiet():
    """A connection that ends between commands gives no error."""
    connection = ControlConnection(100)
    connection.receive(b"GET_ACK\n")
    connection.receive_eof()
    assert requests(connection) == [GetAck()]


def test_a_length_no_frame_can_have_ends_the_connection_after_its_neighbours():
    """Requests before an invalid frame length are returned. Then ``BadFrame`` is raised."""
    connection = ControlConnection(100)
    connection.receive(frame(b"GET_ACK") + b"\xff\xff\xff\xff")
    assert connection.next_request() == GetAck()
    with pytest.raises(BadFrame):
        connection.next_request()


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (b'"application started"', b"application started"),
        (b' "a" \r', b"a"),
        (b'""', b""),
        (b'"a" and "b"', b'a" and "b'),
        (b'say "hi"', b'say "hi"'),
        (b'"', b'"'),
        (b" plain ", b" plain "),
    ],
)
def test_put_drops_the_outer_quotes_only_while_the_connection_asks_for_it(written, stored):
    """``SET quotes strip`` removes one pair of quotes around later payloads; ``keep`` ends that.

    Nothing inside the quotes is changed, and a payload without a pair is stored byte for byte.
    """
    connection = ControlConnection(1000)
    for word in (b"GET_ACK", b"SET quotes strip", b"SET quotes keep"):
        connection.receive(b"%b\nPUT logs %b\n" % (word, written))
    found = [connection.next_request() for _ in range(6)]
    assert found[1::2] == [Put("logs", payload) for payload in (written, stored, written)]
