"""From the one address a user names, its Kafka door, to the broker's others."""

from __future__ import annotations

from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.errors import UnavailableError


def door_address(broker: str, door: str) -> str:
    """Where the broker at this Kafka address has its ``http``, ``control`` or ``ingress`` door."""
    with KafkaClient(broker) as client:
        addresses = client.addresses()
    if door not in addresses:
        raise UnavailableError(f"the broker at {broker} has no {door} door; serve with --{door}")
    return addresses[door]


def http_client(broker: str) -> HttpClient:
    """The JSON API of the broker at this Kafka address."""
    return HttpClient(door_address(broker, "http"))
