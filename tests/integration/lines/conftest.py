"""An in-process broker for tests of the line listeners; its log must contain no traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cordwood.testing import Broker


@pytest.fixture
def broker(caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    """A broker with line, control and HTTP listeners on free ports, without fsync for speed."""
    caplog.set_level(logging.INFO)
    with Broker(kafka="off", durability="os") as running:
        yield running
    assert [record for record in caplog.records if record.exc_info] == []
