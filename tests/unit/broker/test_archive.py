"""What the broker remembers of the archive, and what it refuses to be told."""

from __future__ import annotations

import pytest

from cordwood.client import Client
from cordwood.client.http import HttpClient
from cordwood.errors import CordwoodError, OffsetOutOfRange, StaleManifest
from cordwood.testing import Broker


@pytest.fixture
def broker():
    with Broker(durability="os", monitor_interval_ms=3_600_000) as broker:
        with Client(broker.control) as client:
            client.register("t", "r")
            client.configure("t", {"cleanup.policy": "consume", "archive.required": "true"})
            for i in range(10):
                client.put("t", f"record {i}")
            client.cut("t")
        yield broker


def a_bundle(start, end, **facts):
    said = {"name": f"t/{start}", "sha256": "ab", "link": "cd", "place": "p"}
    return {"start_offset": start, "end_offset": end, **said, **facts}


def tell(broker, *bundles, partition=0):
    said = {"topic": "t", "partition": partition, "bundles": list(bundles)}
    return HttpClient(broker.http).post("/api/archive", said)["archived_end"]


def test_bundles_are_recorded_in_order_and_once(broker):
    """Told again, nothing changes; a restart remembers."""
    assert tell(broker, a_bundle(0, 4), a_bundle(4, 6)) == 6
    assert tell(broker, a_bundle(0, 4), a_bundle(4, 6)) == 6
    assert tell(broker, a_bundle(6, 10)) == 10
    broker.restart()
    (part,) = HttpClient(broker.http).get("/api/archive", topic="t")["partitions"]
    assert part["archived_end"] == 10
    assert [bundle["name"] for bundle in part["bundles"]] == ["t/0", "t/4", "t/6"]


@pytest.mark.parametrize(
    "bundles",
    [
        [a_bundle(1, 4)],
        [a_bundle(0, 4), a_bundle(5, 6)],
        [a_bundle(0, 4), a_bundle(3, 6)],
        [a_bundle(0, 4), a_bundle(0, 4, link="another")],
    ],
)
def test_a_bundle_that_does_not_follow_is_refused(broker, bundles):
    """All or none: a slower run must not leave a hole or an overlap."""
    with pytest.raises(StaleManifest):
        tell(broker, *bundles)
    (part,) = HttpClient(broker.http).get("/api/archive", topic="t")["partitions"]
    assert part["bundles"] == []


@pytest.mark.parametrize("bundle", [a_bundle(0, 0), a_bundle(0, 11)])
def test_a_bundle_of_records_that_are_not_there_is_refused(broker, bundle):
    """Nobody can have read them back."""
    with pytest.raises(CordwoodError):
        tell(broker, bundle)


def test_a_reclaimed_record_is_found_in_its_bundle(broker):
    """The bundle with the very record; a subscriber is told how to get it back."""
    with Client(broker.control) as client:
        client.ack("t", "r", 10)
        assert client.reclaim("t") == 0
        tell(broker, a_bundle(0, 4), a_bundle(4, 9))
        assert client.reclaim("t") == 0, "the segment is not wholly archived"
        tell(broker, a_bundle(9, 10))
        assert client.reclaim("t") == 1
        statuses = [client.status(seq, "t").bundle for seq in (1, 4, 5, 10)]
        assert statuses == ["t/0", "t/0", "t/4", "t/9"]
        with (
            client.subscribe("t", from_seq=5) as lines,
            pytest.raises(OffsetOutOfRange, match="cordwood archive restore t"),
        ):
            next(lines)


def test_bundles_go_with_the_topic(broker):
    """A topic created again under the name has nothing archived."""
    from cordwood.client.kafka import KafkaClient

    tell(broker, a_bundle(0, 4))
    with KafkaClient(broker.kafka) as client:
        client.delete_topic("t")
        client.create_topic("t", 1, {})
    (part,) = HttpClient(broker.http).get("/api/archive", topic="t")["partitions"]
    assert part["archived_end"] == 0
