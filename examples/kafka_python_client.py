"""kafka-python: JSON values with its serializers, and a consumer that ends when it has read all.

python examples/kafka_python_client.py 127.0.0.1:9092
"""

from __future__ import annotations

import json
import sys

from kafka import KafkaConsumer, KafkaProducer


def main(broker: str) -> None:
    """Send three readings, read them back."""
    producer = KafkaProducer(
        bootstrap_servers=broker, value_serializer=lambda value: json.dumps(value).encode()
    )
    for celsius in (19.5, 20.0, 20.5):
        sent = producer.send("readings", key=b"kitchen", value={"celsius": celsius})
        sent.get(timeout=30)  # durable, and its offset is known
    producer.close()

    consumer = KafkaConsumer(
        "readings",
        bootstrap_servers=broker,
        auto_offset_reset="earliest",
        value_deserializer=json.loads,
    )
    for _ in range(3):
        record = next(consumer)
        print(record.offset, record.key.decode(), record.value["celsius"])
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
