"""A broker in this process for tests of the line listeners; its log must hold no traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cordwood.testing import Broker


@pytest.fixture
def broker(caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    """Lines, commands and HTTP on free ports; page-cache durability, to be quick."""
    caplog.set_level(logging.INFO)
    with Broker(kafka="off", durability="os") as running:
        yield running
    assert [record for record in caplog.records if record.exc_info] == []
