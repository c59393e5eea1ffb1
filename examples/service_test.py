"""How a service that publishes to Kafka is tested with cordwood: no Docker, no mocks of a client.

    pip install . confluent-kafka pytest
    pytest examples/service_test.py

The service is the standard library's WSGI, where yours may be FastAPI or Flask; the tests do not
change. ``cordwood_broker`` comes with the installation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from confluent_kafka import Consumer, Producer

from cordwood.testing import Broker

# --- the service ----------------------------------------------------------------------------


class Orders:
    """``POST /orders`` publishes the order and answers 201 once it is durable, else 503."""

    def __init__(self, bootstrap_servers: str, *, patience_s: float = 10) -> None:
        self._patience_s = patience_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": int(patience_s * 1000),
                "log_level": 0,
            }
        )

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        """One request."""
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/orders"):
            return self._answer(start, "404 Not Found", {"error": "no such path"})
        try:
            order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            customer = str(order["customer"])
        except (ValueError, KeyError, TypeError):
            return self._answer(start, "422 Unprocessable Content", {"error": "not an order"})
        if not self._publish(customer, order):
            return self._answer(start, "503 Service Unavailable", {"error": "try again"})
        return self._answer(start, "201 Created", {"accepted": True})

    def _publish(self, customer: str, order: object) -> bool:
        problems: list[object] = []
        self._producer.produce(
            "orders",
            key=customer,
            value=json.dumps(order),
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
        return self._producer.flush(self._patience_s + 1) == 0 and not problems

    def _answer(self, start: Callable[..., Any], status: str, body: object) -> list[bytes]:
        start(status, [("content-type", "application/json")])
        return [json.dumps(body).encode()]


# --- its tests ------------------------------------------------------------------------------


def post(service: Orders, body: bytes) -> str:
    """The status of one request, without a socket."""
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/orders"}
    environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
    setup_testing_defaults(environ)
    statuses: list[str] = []
    service(environ, lambda status, _headers: statuses.append(status))
    return statuses[0]


def read(broker: Broker, count: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The first records of the topic, as any consumer sees them."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "t"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        for message in consumer.consume(count, timeout=30):
            yield message.key(), json.loads(message.value())
    finally:
        consumer.close()


def test_accepted_order_is_published_under_its_customer(cordwood_broker: Broker) -> None:
    """201 means that the order is in the topic, keyed for the right partition."""
    service = Orders(cordwood_broker.kafka)
    assert post(service, b'{"customer": "ada", "items": 2}') == "201 Created"
    assert list(read(cordwood_broker, 1)) == [(b"ada", {"customer": "ada", "items": 2})]


def test_nonsense_is_refused_and_not_published(cordwood_broker: Broker) -> None:
    """422, and the next good order is the first record."""
    service = Orders(cordwood_broker.kafka)
    assert post(service, b"nonsense") == "422 Unprocessable Content"
    assert post(service, b'{"customer": "ada"}') == "201 Created"
    assert list(read(cordwood_broker, 1)) == [(b"ada", {"customer": "ada"})]


@pytest.mark.cordwood(auto_create_topics=False)
def test_order_without_a_topic_is_not_accepted(cordwood_broker: Broker) -> None:
    """The broker's refusal reaches the caller; a mark changes the broker's settings."""
    service = Orders(cordwood_broker.kafka, patience_s=1)
    assert post(service, b'{"customer": "ada"}') == "503 Service Unavailable"


def test_service_survives_a_broker_that_goes_away(cordwood_broker: Broker) -> None:
    """503 while it is gone; nothing is promised that was not kept."""
    service = Orders(cordwood_broker.kafka, patience_s=1)
    assert post(service, b'{"customer": "ada"}') == "201 Created"
    cordwood_broker.stop()
    assert post(service, b'{"customer": "bob"}') == "503 Service Unavailable"
    cordwood_broker.start()
    assert list(read(cordwood_broker, 1)) == [(b"ada", {"customer": "ada"})]
