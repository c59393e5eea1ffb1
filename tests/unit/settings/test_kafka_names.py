"""Kafka's topic settings: all of them exist here, with values that Kafka's tools send."""

from __future__ import annotations

import pytest

from cordwood.config import TopicConfig, changed, format_value, rows
from cordwood.settings.kafka_names import TOPIC_SETTINGS

DIFFERENT = {"message.timestamp.after.max.ms"}  # records of the future are accepted by default


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_kafkas_default_of_every_setting_is_accepted_and_shown_again(name: str):
    """A topic definition that states Kafka's defaults is accepted, and described with them."""
    text = TOPIC_SETTINGS[name].default
    field_name, _, row = rows(TopicConfig)[name]
    config = changed(TopicConfig(), {name: text})
    assert format_value(row, getattr(config, field_name)) == text
    assert (config == TopicConfig()) is (name not in DIFFERENT)


def test_no_broker_name_stands_for_two_settings():
    """Each broker-wide name of Kafka is the default of one topic setting."""
    names = [each.broker_name for each in TOPIC_SETTINGS.values() if each.broker_name]
    assert len(names) == len(set(names))
