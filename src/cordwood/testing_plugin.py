"""The pytest plugin: provides the fixture ``cordwood_broker`` wherever cordwood is installed.

    def test_orders_are_published(cordwood_broker):
        place_order(bootstrap_servers=cordwood_broker.kafka)

Pytest loads it in every test suite of the environment, so it imports nothing of cordwood before a
test requests the fixture. Never imported by cordwood itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cordwood.testing import Broker

MARKER = "cordwood"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that it works with ``--strict-markers`` too."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**settings): settings of this test's cordwood_broker, with underscores for dots",
    )


@pytest.fixture
def cordwood_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker on free ports with an empty log, new for each test; no Docker, no Spark.

    ``@pytest.mark.cordwood(num_partitions=3)`` changes its settings.
    """
    from cordwood.testing import Broker

    marks = reversed(list(request.node.iter_markers(MARKER)))  # the nearest wins
    settings = {name: value for mark in marks for name, value in mark.kwargs.items()}
    with Broker(**settings) as broker:
        yield broker
