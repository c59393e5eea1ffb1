"""The client of the line protocol: standard library only, blocking here and async in ``aio``.

    with Producer("127.0.0.1:5673") as producer:
        producer.send("orders.new", b"one")
        producer.send_and_confirm([("orders.new", b"two"), ("orders.new", b"three")])

    with Client("127.0.0.1:5675") as client:
        for line in client.subscribe("append", from_start=True, idle_timeout_s=1):
            print(line.seq, line.routing_key, line.payload)

With TLS: ``Client("broker.example:5677", tls=ClientTls(ca="ca.pem"))``.

A producer or client must not be shared between threads or tasks; create one for each. Broker
errors are raised as the class of ``cordwood.errors`` that the broker names.

Flows (``producer_flows``, ``control_flows``) implement protocol and methods once, without I/O: a
flow yields effects, and ``blocking`` and ``aio`` perform them, each with its own kind of socket.
"""

from cordwood.client.blocking import Client, Producer, Subscription
from cordwood.client.control_flows import Status, StatusWord, Taken
from cordwood.client.send_buffer import Message, Sendable
from cordwood.protocol.line.arguments import StartPosition
from cordwood.protocol.line.records import Line
from cordwood.tls import ClientTls

__all__ = [
    "Client",
    "ClientTls",
    "Line",
    "Message",
    "Producer",
    "Sendable",
    "StartPosition",
    "Status",
    "StatusWord",
    "Subscription",
    "Taken",
]
