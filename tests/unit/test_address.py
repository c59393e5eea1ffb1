"""Parsing and printing of listener addresses."""

import pytest

from cordwood.address import Address, parse_address
from cordwood.errors import ConfigError, RequestError

MALFORMED = ("localhost", ":5673", "h:", "h:x", "h:65536", "")


def test_addresses_are_parsed_as_users_write_them():
    """An address is host and port, with brackets around IPv6. Spaces around it are ignored."""
    assert parse_address("127.0.0.1:5673") == Address("127.0.0.1", 5673)
    assert parse_address(" 127.0.0.1:5673") == Address("127.0.0.1", 5673)
    assert parse_address("[::1]:5673") == Address("::1", 5673)
    assert parse_address(("::1", 1)) == Address("::1", 1)


@pytest.mark.parametrize("text", ["127.0.0.1:5673", "[::1]:1", "broker.example:0"])
def test_an_address_prints_as_it_is_parsed(text):
    """``str`` and ``parse_address`` are inverse."""
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_address_is_refused_with_the_form_to_write(text):
    """A malformed address given to a client raises ``RequestError`` with the expected form."""
    with pytest.raises(RequestError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_setting_is_refused_by_its_name(text):
    """A malformed address in a setting raises ``ConfigError`` that names the setting."""
    with pytest.raises(ConfigError, match=r"advertised\.kafka is .*HOST:PORT"):
        parse_address(text, setting="advertised.kafka")
