"""``commitGroup``: a running query commits a consumer group's cursor, and RECLAIM waits for it."""

import pytest

from cordwood.client import Client
from cordwood.client.kafka import KafkaClient
from cordwood.spark import topic_stream
from cordwood.testing import Broker
from support.lines import until

pytestmark = pytest.mark.spark

GROUP = "spark-jobs"


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", durability="os", monitor_interval_ms=3_600_000) as running:
        yield running


def put(client, start, end):
    """Put the records ``start`` to ``end`` and seal their segment."""
    for number in range(start, end):
        client.put("jobs", b"%d" % number)
    client.cut("jobs")


def cursor(broker):
    """Return the group's committed offset, as ``cordwood group describe`` shows it."""
    with KafkaClient(broker.kafka) as kafka:
        return max((each.offset for each in kafka.committed(GROUP)), default=0)


def test_a_running_query_moves_its_groups_cursor_and_reclaim_waits_for_it(spark, broker):
    """The cursor is one micro-batch behind, and RECLAIM drops only segments before it."""
    with Client(broker.control) as client:
        put(client, 0, 10)
        client.configure("jobs", {"cleanup.policy": "consume"})
        client.register("jobs", GROUP)
        put(client, 10, 20)
        assert client.reclaim("jobs") == 0, "nobody has read anything"
        query = (
            topic_stream(
                spark, "jobs", broker=broker.kafka, startingOffsets="earliest", commitGroup=GROUP
            )
            .writeStream.format("noop")
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            query.processAllAvailable()
            put(client, 20, 30)  # planning the next batch commits the first
            query.processAllAvailable()
            until(lambda: 20 <= cursor(broker) <= 30, "the cursor passes what was there first")
            assert client.reclaim("jobs") == (3 if cursor(broker) == 30 else 2)
        finally:
            query.stop()
