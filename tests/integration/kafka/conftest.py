"""Fixtures of the tests of consumer groups; each file has a ``broker`` of its own."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient


@pytest.fixture
def operator(broker):
    """An admin client kept alive by a fixture: garbage collection would cancel its requests."""
    return AdminClient({"bootstrap.servers": broker.kafka})


@pytest.fixture
def members():
    """A list of group members; all are closed when the test ends."""
    opened = []
    yield opened
    for member in opened:
        member.close()
