"""The session of a connection reaches every request of the two line listeners."""

from __future__ import annotations

from cordwood.address import Address, parse_address
from cordwood.broker.session import Session
from cordwood.testing import Broker
from support.lines import Wire


def session_of(wire: Wire, listener: str, address: str) -> Session:
    peer = str(Address(*wire.socket.getsockname()))
    host, port = parse_address(address)
    return Session(principal="User:ANONYMOUS", listener=listener, peer=peer, host=host, port=port)


def test_a_stream_of_lines_knows_its_session(broker: Broker):
    """A producer's stream has the principal, listener and addresses of its connection."""
    with Wire(broker.ingress) as wire:
        wire.hello("known")
        stream = broker.service.broker.ingress.names.holders["known"]
        assert stream.session == session_of(wire, "ingress", broker.ingress)


def test_each_command_is_answered_for_its_session(broker: Broker):
    """Each command, also SUBSCRIBE, is handled with the session of its own connection."""
    commands = broker.service.broker.commands
    answer, subscribe = commands.answer, commands.subscribe
    seen = []

    async def record_answer(request, context):
        seen.append(context.session)
        return await answer(request, context)

    async def record_subscribe(request, context):
        seen.append(context.session)
        return await subscribe(request, context)

    commands.answer, commands.subscribe = record_answer, record_subscribe
    with Wire(broker.control) as first, Wire(broker.control) as second:
        first.send(b"REGISTER t\nSUBSCRIBE t\nQUIT\n").rest()
        second.send(b"GET_ACK t\nQUIT\n").rest()
        expected = [session_of(wire, "control", broker.control) for wire in (first, second)]
        assert seen == [expected[0]] * 3 + [expected[1]] * 2
