"""Log levels over the Kafka protocol."""

from __future__ import annotations

import logging

import pytest

from cordwood.codes import Code
from cordwood.protocol.kafka.messages.configs import (
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigChange,
    ConfigChanges,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.kafka_services import KafkaServices

LOGGER = 8
SET, DELETE, APPEND = range(3)


@pytest.fixture(autouse=True)
def levels():
    """Restore the levels after a test."""
    names = (None, "cordwood", "cordwood.broker")
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


async def level(services, name):
    request = DescribeConfigsRequest([DescribeConfigsResource(LOGGER, "1", [name])])
    (found,) = (await services.ask(request)).results
    ((shown,),) = (found.configs,)
    assert (shown.config_source, shown.read_only) == (6, False)
    return shown.value


async def alter(services, *changes, validate_only=False):
    asked = ConfigChanges(LOGGER, "1", [ConfigChange(*each) for each in changes])
    (reply,) = (await services.ask(IncrementalAlterConfigsRequest([asked], validate_only))).results
    return reply.error_code


async def test_a_level_takes_effect_at_once(tmp_path):
    """A logger logs more as soon as its level is lower, and follows its parent after a deletion."""
    async with KafkaServices(tmp_path) as services:
        ours = logging.getLogger("cordwood.broker")
        assert await alter(services, ("root", SET, "WARN")) == Code.NONE
        assert not ours.isEnabledFor(logging.INFO)
        assert await alter(services, ("cordwood.broker", SET, "debug")) == Code.NONE
        assert ours.isEnabledFor(logging.DEBUG)
        assert await level(services, "cordwood.broker") == "DEBUG"
        assert await alter(services, ("cordwood.broker", DELETE, None)) == Code.NONE
        assert await level(services, "cordwood.broker") == "WARN"


@pytest.mark.parametrize("text", ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"])
async def test_levels_have_kafkas_names(tmp_path, text):
    """Every level that Kafka has can be set and is shown again."""
    async with KafkaServices(tmp_path) as services:
        assert await alter(services, ("cordwood", SET, text)) == Code.NONE
        assert await level(services, "cordwood") == text


async def test_wrong_changes_are_refused_whole(tmp_path):
    """An unknown logger or level, a list operation or a root without a level changes nothing."""
    async with KafkaServices(tmp_path) as services:
        before = await level(services, "cordwood")
        for wrong, code in (
            (("kafka.server", SET, "INFO"), Code.INVALID_CONFIG),
            (("cordwood.broker", SET, "loud"), Code.INVALID_CONFIG),
            (("cordwood.broker", APPEND, "INFO"), Code.INVALID_REQUEST),
            (("root", DELETE, None), Code.INVALID_REQUEST),
        ):
            assert await alter(services, ("cordwood", SET, "FATAL"), wrong) == code
        assert await alter(services, ("cordwood", SET, "FATAL"), validate_only=True) == Code.NONE
        assert await level(services, "cordwood") == before


async def test_levels_are_not_replaced_as_a_whole(tmp_path):
    """As in Kafka, only IncrementalAlterConfigs changes levels."""
    async with KafkaServices(tmp_path) as services:
        named = AlterConfigsResource(LOGGER, "1", [AlterConfig("root", "INFO")])
        (reply,) = (await services.ask(AlterConfigsRequest([named], False))).results
        assert reply.error_code == Code.INVALID_REQUEST
