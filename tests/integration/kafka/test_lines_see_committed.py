"""Line protocol readers see only what a read_committed Kafka consumer sees."""

from confluent_kafka import Producer

from cordwood.client import Client
from cordwood.testing import Broker


def test_subscriber_never_sees_an_aborted_record():
    """Neither SUBSCRIBE nor GET returns the records of an aborted transaction."""
    with Broker() as broker:
        producer = Producer(
            {"bootstrap.servers": broker.kafka, "transactional.id": "t", "log_level": 0}
        )
        producer.init_transactions(30)
        for value, end in ((b"void", producer.abort_transaction),
                           (b"kept", producer.commit_transaction)):  # fmt: skip
            producer.begin_transaction()
            producer.produce("orders", value)
            producer.flush()
            end(30)
        with (
            Client(broker.control) as client,
            client.subscribe("orders", from_start=True, idle_timeout_s=30) as lines,
        ):
            assert next(lines).payload == b"kept"
            assert client.get("orders").payload == b"kept"
