"""Calls as users write them; mypy checks this file with ``make check``, and nothing runs it.

``assert_type`` proves that a method declared once has its own result in each class, and an
``ignore`` that mypy would report as unused proves that a wrong call is found.
"""

from __future__ import annotations

import asyncio
from typing import assert_type

from cordwood.client import Client, Line, Message, Producer, Status, Subscription, Taken, aio


def call_blocking(client: Client, producer: Producer) -> None:
    """Results are returned."""
    assert_type(client.get_ack(), int)
    assert_type(client.status(7, topic="orders"), Status)
    assert_type(client.get("orders"), Taken | None)
    assert_type(client.state("orders"), dict[str, object])
    assert_type(client.subscribe("orders", from_start=True), Subscription)
    assert_type(list(client.subscribe("orders")), list[Line])
    assert_type(producer.send("orders.new", b"1"), int)
    assert_type(producer.send_and_confirm([Message("orders.new", "2")], timeout_s=1), int)
    client.get_ack(7)  # type: ignore[arg-type]
    client.status(topic="orders")  # type: ignore[call-arg]
    Producer("127.0.0.1:5673", batches=7)  # type: ignore[call-arg]
    with Client("127.0.0.1:5675") as opened:
        assert_type(opened, Client)


async def call_async(client: aio.Client, producer: aio.Producer) -> None:
    """Results are awaited, alone or as tasks."""
    assert_type(await client.get_ack(), int)
    assert_type(await client.status(7, topic="orders"), Status)
    assert_type(await asyncio.create_task(client.get("orders")), Taken | None)
    assert_type([line async for line in client.subscribe("orders")], list[Line])
    assert_type(await producer.send("orders.new", b"1"), int)
    assert_type(await producer.send_and_confirm([("orders.new", b"2")]), int)
    await client.get_ack(7)  # type: ignore[arg-type]
    async with aio.Client("127.0.0.1:5675") as opened:
        assert_type(opened, aio.Client)
