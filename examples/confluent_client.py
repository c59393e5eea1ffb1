"""confluent-kafka: an idempotent producer and a consumer group, nothing changed for cordwood.

python examples/confluent_client.py 127.0.0.1:9092
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer


def main(broker: str) -> None:
    """Send three orders, read them back as a group, commit."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number in range(3):
        producer.produce("orders", key=f"customer-{number}", value=f"order {number}")
    left = producer.flush(30)
    assert left == 0, f"{left} records were not acknowledged"

    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    seen = 0
    while seen < 3:
        message = consumer.poll(30)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - their name
        if message.error():
            raise KafkaException(message.error())
        print(message.offset(), message.key().decode(), message.value().decode())
        seen += 1
    consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
