"""How long a job waits for a broker that is down."""

import time

import pytest

from cordwood.errors import UnavailableError
from cordwood.pipeline.runtime import broker_api
from cordwood.pipeline.runtime.broker_api import BrokerAddress, BrokerApi


def test_who_works_for_a_parent_that_is_gone_waits_for_no_broker(monkeypatch):
    """A worker whose parent process is gone does not wait for the broker.

    Otherwise a reader left behind by Spark's JVM would run on for a minute.
    """
    api = BrokerApi(BrokerAddress(http="127.0.0.1:1"), for_parent=True)
    monkeypatch.setattr(broker_api.os, "getppid", lambda: -1)
    monkeypatch.setattr(broker_api.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(UnavailableError):
        api.status()


def test_others_wait_whoever_started_them(monkeypatch):
    """Other jobs wait for the broker, even if their parent process is gone."""
    api = BrokerApi(BrokerAddress(http="127.0.0.1:1"), timeout_s=1000)
    monkeypatch.setattr(broker_api.os, "getppid", lambda: -1)
    clock, waited = [time.monotonic()], []
    monkeypatch.setattr(broker_api.time, "monotonic", lambda: clock[0])

    def sleep(seconds):
        waited.append(seconds)
        clock[0] += seconds + 400

    monkeypatch.setattr(broker_api.time, "sleep", sleep)
    with pytest.raises(UnavailableError):
        api.status()
    assert len(waited) > 1
