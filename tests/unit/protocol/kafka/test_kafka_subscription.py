"""Reading the topics out of a consumer's subscription bytes."""

from __future__ import annotations

import importlib
import random

import pytest

from cordwood.errors import BadMessage
from cordwood.protocol.kafka.subscription import parse_subscription
from support.kio_oracle import kio_bytes, random_entity


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_topics_are_found_in_every_version(version):
    """Later versions only add after the topics."""
    path = f"kio.schema.consumer_protocol_subscription.v{version}.data"
    theirs = importlib.import_module(path).ConsumerProtocolSubscription
    rng = random.Random(version)
    for _ in range(20):
        message = random_entity(theirs, rng)
        data = version.to_bytes(2) + kio_bytes(message)
        assert parse_subscription(data) == message.topics


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
def test_bytes_that_are_no_subscription_are_refused(data):
    """Another client's own format is BadMessage, for the caller to pass over."""
    with pytest.raises(BadMessage):
        parse_subscription(data)
