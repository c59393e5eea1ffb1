"""The table of handlers is whole."""

from __future__ import annotations

from cordwood.broker.kafka.desk import KafkaDesk
from cordwood.wire.kafka.schema import APIS
from support.kafka_desks import KafkaDesks


async def test_every_api_that_is_served_has_its_handler(tmp_path):
    """No more and no less: the desk refuses a table with a hole."""
    async with KafkaDesks(tmp_path) as desks:
        assert set(desks.handlers) == {api.name for api in APIS}
        assert KafkaDesk(desks.writer, desks.produce_desk, desks.handlers)
