"""Which of the broker's listeners a client uses, from what the broker says about itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.address import Address
from cordwood.client.broker_listeners import (
    ListenerAddress,
    choose_listener,
    is_loopback,
    parse_http,
)
from cordwood.errors import RequestError, WrongListener

REACHED = Address("broker.example", 9092)
ADDRESSES = st.sampled_from(["off", "", "127.0.0.1:1", "0.0.0.0:2", "[::]:3", "b.example:4,c:5"])


def choose(settings: dict[str, str], *, uses_tls: bool) -> ListenerAddress:
    return choose_listener("http", settings, REACHED, uses_tls=uses_tls)


def test_client_without_tls_uses_the_listener_without_tls():
    """Of two listeners the one that fits the client is chosen."""
    settings = {"http": "10.0.0.1:1", "http.tls": "10.0.0.1:2"}
    assert choose(settings, uses_tls=False) == ("10.0.0.1:1", False)
    assert choose(settings, uses_tls=True) == ("10.0.0.1:2", True)


def test_listener_bound_to_every_address_is_at_the_host_that_was_reached():
    """0.0.0.0 and :: are not addresses to connect to."""
    assert choose({"http": "0.0.0.0:1,10.0.0.1:2"}, uses_tls=False).address == "broker.example:1"
    assert choose({"http.tls": "[::]:3"}, uses_tls=True).address == "broker.example:3"


def test_client_with_tls_uses_a_plain_listener_only_on_loopback():
    """What a user wants encrypted does not leave the machine in clear text."""
    assert choose({"http": "127.0.0.1:1"}, uses_tls=True) == ("127.0.0.1:1", False)
    with pytest.raises(WrongListener, match=r"has no TLS.*--http-tls"):
        choose({"http": "10.0.0.1:1"}, uses_tls=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"http.tls": "10.0.0.1:1"}, "uses TLS; connect .* with TLS too"),
        ({"http": "off", "http.tls": "off"}, "has no http listener; start it with --http"),
        ({}, "has no http listener"),
    ],
)
def test_missing_listener_is_one_sentence(settings: dict[str, str], message: str):
    """The sentence says what to do next."""
    with pytest.raises(WrongListener, match=message):
        choose(settings, uses_tls=False)


@pytest.mark.parametrize(
    ("advertised", "http", "expected"),
    [
        ("api.example:80", "0.0.0.0:8080", ("api.example:80", False)),
        ("api.example:443", "off", ("api.example:443", True)),
        ("https://api.example:443/", "0.0.0.0:8080", ("api.example:443", True)),
        ("http://api.example:80", "off", ("api.example:80", False)),
    ],
)
def test_advertised_address_wins(advertised: str, http: str, expected: tuple[str, bool]):
    """advertised.http is used as it is; without a scheme, TLS if there is no plain listener."""
    settings = {"http": http, "http.tls": "0.0.0.0:8443", "advertised.http": advertised}
    assert choose(settings, uses_tls=False) == expected
    assert choose(settings, uses_tls=True) == expected


@given(http=ADDRESSES, http_tls=ADDRESSES, uses_tls=st.booleans())
def test_tls_is_dropped_only_on_loopback(http: str, http_tls: str, uses_tls: bool):
    """For any settings: TLS is as the client has it, or the address is on this machine."""
    try:
        address, is_tls = choose({"http": http, "http.tls": http_tls}, uses_tls=uses_tls)
    except WrongListener:
        return
    assert is_tls == uses_tls or is_loopback(address.rpartition(":")[0])
    assert "0.0.0.0" not in address


def test_malformed_address_is_refused():
    """A URL with a path or without a port is not the address of a listener."""
    for text in ("https://api.example", "ftp://api.example:1/x", "api"):
        with pytest.raises(RequestError, match="is not an address"):
            parse_http(text)
