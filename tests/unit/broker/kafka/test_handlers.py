"""The handler table is complete."""

from __future__ import annotations

from cordwood.broker.kafka.dispatcher import RequestDispatcher
from cordwood.protocol.kafka.schema import APIS
from support.kafka_services import KafkaServices


async def test_every_api_that_is_served_has_its_handler(tmp_path):
    """The handlers match the served APIs exactly; the dispatcher refuses an incomplete table."""
    async with KafkaServices(tmp_path) as services:
        assert set(services.handlers) == {api.name for api in APIS}
        assert RequestDispatcher(services.writer, services.produce_service, services.handlers)
