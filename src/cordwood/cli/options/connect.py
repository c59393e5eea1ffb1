"""From the one address a user names, its Kafka listener, to the broker's others."""

from __future__ import annotations

from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient
from cordwood.errors import UnavailableError


def listener_address(broker: str, listener: str) -> str:
    """The address of the ``http``, ``control`` or ``ingress`` listener of the broker."""
    with KafkaClient(broker) as client:
        addresses = client.addresses()
    if listener not in addresses:
        raise UnavailableError(
            f"the broker at {broker} has no {listener} listener; serve with --{listener}"
        )
    return addresses[listener]


def http_client(broker: str) -> HttpClient:
    """The JSON API of the broker at this Kafka address."""
    return HttpClient(listener_address(broker, "http"))
