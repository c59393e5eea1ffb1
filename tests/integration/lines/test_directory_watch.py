"""A running broker whose data directory is moved stops acknowledging and reports it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from cordwood.testing import Broker
from support.lines import ask, http_get, until


def ready(broker: Broker) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def put(broker: Broker, value: str) -> bytes:
    """Send one PUT and return the broker's reply."""
    return ask(broker.control, f"PUT t {value}")


def test_a_moved_directory_takes_every_partition_offline(tmp_path: Path):
    """When the data directory is moved, /readyz reports every partition offline and PUT fails.

    After the directory is moved back and the broker restarts, all its records are present.
    """
    data = tmp_path / "data"
    with Broker(data) as broker:
        assert put(broker, "before").startswith(b"OK")
        assert ready(broker)[0] == 200
        assert "cordwood_data_directory_lost 0.0" in http_get(broker.http, "/metrics")[1]
        data.rename(tmp_path / "away")
        until(lambda: ready(broker)[1]["offline_partitions"], "the broker notices")
        status, stats = ready(broker)
        assert status == 503
        assert "cannot be found" in str(stats["data_directory"])
        assert list(stats["offline_partitions"]) == ["t-0"]
        assert "cordwood_data_directory_lost 1.0" in http_get(broker.http, "/metrics")[1]
        assert put(broker, "after").startswith(b"ERR")
    (tmp_path / "away").rename(data)
    with Broker(data) as broker:
        assert ready(broker)[0] == 200
        assert broker.service.broker.store.topic("t").partition(0).log_end_offset == 1
