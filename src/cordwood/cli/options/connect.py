"""Finds the broker's other listeners from its Kafka address, the only one a user gives."""

from __future__ import annotations

from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.errors import UnavailableError


def listener_address(broker: str, listener: str) -> str:
    """Return the address of the broker's ``http``, ``control`` or ``ingress`` listener."""
    with KafkaClient(broker) as client:
        addresses = client.addresses()
    if listener not in addresses:
        raise UnavailableError(
            f"the broker at {broker} has no {listener} listener; start it with --{listener} "
            "HOST:PORT"
        )
    return addresses[listener]


def http_client(broker: str) -> HttpClient:
    """Return a client of the JSON API of the broker at this Kafka address."""
    return HttpClient(listener_address(broker, "http"))
