"""aiokafka: a transaction, and a reader that sees it only when it is committed.

python examples/aiokafka_client.py 127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(broker: str) -> None:
    """Abort one transfer, commit another; a ``read_committed`` reader sees the second only."""
    producer = AIOKafkaProducer(bootstrap_servers=broker, transactional_id="bank-1")
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait("transfers", b"-100", key=b"alice")
        await producer.abort_transaction()  # nobody was credited

        async with producer.transaction():
            await producer.send_and_wait("transfers", b"-70", key=b"alice")
            await producer.send_and_wait("transfers", b"+70", key=b"bob")
    finally:
        await producer.stop()

    consumer = AIOKafkaConsumer(
        "transfers",
        bootstrap_servers=broker,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        for _ in range(2):
            record = await asyncio.wait_for(consumer.getone(), 30)
            print(record.key.decode(), record.value.decode())
    finally:
        await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"))
