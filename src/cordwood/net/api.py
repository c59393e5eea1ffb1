"""What the HTTP door answers."""

from __future__ import annotations

from cordwood.broker.broker import Broker
from cordwood.broker.metrics import exposition
from cordwood.net.http import Answer, Handler, Query

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def http_routes(broker: Broker) -> dict[tuple[str, str], Handler]:
    """(method, path) → handler."""

    async def healthz(_: Query) -> Answer:
        return Answer.of({"status": "alive"})

    async def readyz(_: Query) -> Answer:
        ready, facts = broker.is_ready()
        return Answer.of({"ready": ready, **facts}, 200 if ready else 503)

    async def metrics(_: Query) -> Answer:
        return Answer(exposition(broker), content_type=METRICS_TYPE)

    return {
        ("GET", "/healthz"): healthz,
        ("GET", "/livez"): healthz,
        ("GET", "/readyz"): readyz,
        ("GET", "/metrics"): metrics,
    }
