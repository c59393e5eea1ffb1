"""How long a job waits for a broker that is away."""

import time

import pytest

from cordwood.errors import UnavailableError
from cordwood.pipeline import broker
from cordwood.pipeline.broker import BrokerApi, Where


def test_who_works_for_a_parent_that_is_gone_waits_for_no_broker(monkeypatch):
    """Else a reader that Spark's Java left behind would live on for a minute."""
    api = BrokerApi(Where(http="127.0.0.1:1"), for_parent=True)
    monkeypatch.setattr(broker.os, "getppid", lambda: -1)
    monkeypatch.setattr(broker.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(UnavailableError):
        api.status()


def test_others_wait_whoever_started_them(monkeypatch):
    """A pipeline whose shell was closed sees a broker through its restart."""
    api = BrokerApi(Where(http="127.0.0.1:1"), timeout_s=1000)
    monkeypatch.setattr(broker.os, "getppid", lambda: -1)
    clock, waited = [time.monotonic()], []
    monkeypatch.setattr(broker.time, "monotonic", lambda: clock[0])

    def sleep(seconds):
        waited.append(seconds)
        clock[0] += seconds + 400

    monkeypatch.setattr(broker.time, "sleep", sleep)
    with pytest.raises(UnavailableError):
        api.status()
    assert len(waited) > 1
