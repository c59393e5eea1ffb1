"""Parsing topics from a consumer's subscription bytes."""

from __future__ import annotations

import importlib
import random

import pytest

from cordwood.decide.groups.subscription import parse_subscription
from support.kio_oracle import kio_bytes, random_entity


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_topics_are_found_in_every_version(version):
    """The topics parse in every version, because later versions only append fields."""
    path = f"kio.schema.consumer_protocol_subscription.v{version}.data"
    theirs = importlib.import_module(path).ConsumerProtocolSubscription
    rng = random.Random(version)
    for _ in range(20):
        message = random_entity(theirs, rng)
        data = version.to_bytes(2) + kio_bytes(message)
        assert parse_subscription(data) == frozenset(message.topics)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\x01\0\x05abc",
        b"\0\0\0\0\0\x01\xff\xffabc",
        b"\0\0\0\0\0\x01\0\x02\xff\xfe",
    ],
)
def test_bytes_that_are_no_subscription_have_unknown_topics(data):
    """Bytes in another format return None."""
    assert parse_subscription(data) is None
