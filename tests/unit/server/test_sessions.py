"""The session that a listener creates for a connection."""

from __future__ import annotations

import dataclasses

import pytest

from cordwood.broker.session import Session
from cordwood.clock import SystemClock
from cordwood.server.listeners import Connection, Listener, OpenConnections

BROKER, PEER = ("192.0.2.1", 9092), "192.0.2.7:40000"


class Transport:
    """A fake transport that knows only its own address."""

    def get_extra_info(self, name):
        assert name == "sockname"
        return BROKER


@pytest.fixture
def session():
    listener = Listener("kafka", SystemClock(), 10, 60.0, OpenConnections(10))
    return listener.session(Connection(Transport(), PEER, 0.0))


def test_a_session_names_the_listener_the_peer_and_the_address_that_the_peer_reached(session):
    """A session has the listener, the peer and the local address.

    Before authentication, the principal is Kafka's anonymous user.
    """
    assert session == Session(
        principal="User:ANONYMOUS",
        listener="kafka",
        peer=PEER,
        client_id=None,
        host="192.0.2.1",
        port=9092,
    )


def test_a_session_never_changes(session):
    """A session is immutable. A change makes a new session."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        session.client_id = "other"
    assert dataclasses.replace(session, client_id="other").peer == PEER
