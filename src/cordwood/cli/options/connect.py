"""Connects to the broker that a command names, and finds its other listeners by the Kafka one."""

from __future__ import annotations

from cordwood.cli.options.tls import BrokerTarget
from cordwood.client.broker_listeners import ListenerAddress
from cordwood.client.http import HttpClient
from cordwood.client.kafka import KafkaClient


def kafka_client(broker: BrokerTarget) -> KafkaClient:
    """Return a client of the broker's Kafka listener."""
    return KafkaClient(broker.address, tls=broker.tls)


def listener_address(broker: BrokerTarget, listener: str) -> ListenerAddress:
    """Return the address of the broker's ``http``, ``control`` or ``ingress`` listener."""
    with kafka_client(broker) as client:
        return client.listener(listener)


def http_client(broker: BrokerTarget) -> HttpClient:
    """Return a client of the JSON API of the broker at this Kafka address."""
    return HttpClient(listener_address(broker, "http"), tls=broker.tls)
