"""Which topic a routing key is routed to."""

from __future__ import annotations

import pytest

from cordwood.decide.routing import Bindings, DeadLetter, DeadReason, Routed, route

BINDINGS = Bindings(
    exact={"orders.eu": "europe", "bad": "no/topic"},
    prefix={"orders": "orders_all"},
    source="append",
)


@pytest.mark.parametrize(
    ("key", "topic"),
    [
        (b"orders.eu", "europe"),
        (b"orders.us", "orders_all"),
        (b"orders", "orders_all"),
        (b"orders.eu.west", "orders_all"),
        (b"metrics.cpu.load", "metrics"),
        (b"metrics", "metrics"),
        (b"dead.x", "dead"),
    ],
)
def test_exact_wins_over_prefix_wins_over_the_default(key, topic):
    """An exact binding wins over a prefix binding, and without either the prefix is the topic.

    The prefix ends at the first dot.
    """
    assert route(key, BINDINGS) == Routed(topic)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, DeadReason.NO_KEY),
        (b"", DeadReason.NO_KEY),
        (b"\xff\xfe", DeadReason.NOT_TEXT),
        (b".hidden", DeadReason.BAD_TOPIC),
        (b"sp ace.x", DeadReason.BAD_TOPIC),
        (b"x" * 250, DeadReason.BAD_TOPIC),
        ("grün.x".encode(), DeadReason.BAD_TOPIC),
        (b"bad", DeadReason.BAD_TOPIC),
        (b"append.x", DeadReason.LOOP),
    ],
)
def test_what_cannot_be_routed_is_a_dead_letter_with_a_reason(key, reason):
    """A key that cannot be routed becomes a dead letter with a reason; no key raises an error."""
    verdict = route(key, BINDINGS)
    assert isinstance(verdict, DeadLetter)
    assert verdict.reason is reason
    assert verdict.detail


def test_without_the_default_rule_only_bindings_route():
    """Without the default rule, a key without a binding is a dead letter that names the key."""
    strict = Bindings(prefix={"a": "t"}, by_prefix_name=False)
    assert route(b"a.b", strict) == Routed("t")
    assert route(b"c.d", strict) == DeadLetter(
        DeadReason.UNBOUND, "no binding for routing key 'c.d'"
    )
