"""Law of a topic's settings: its own, else the broker's default, else the built-in default."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import (
    BrokerConfig,
    TopicConfig,
    changed,
    format_value,
    parse_value,
    rows,
    topic_config,
    topic_overrides,
)

TEXTS = {
    "segment.entries": st.integers(1, 99).map(str),
    "retention.ms": st.integers(-1, 99).map(str),
    "cleanup.policy": st.sampled_from(["delete", "consume", "compact", "consume,delete"]),
    "preallocate": st.sampled_from(["true", "false"]),
    "flush.ms": st.integers(-1, 99).map(str),
}
SETTINGS = st.fixed_dictionaries({}, optional=TEXTS)


@given(SETTINGS, SETTINGS)
def test_a_topic_has_its_own_setting_else_the_brokers_else_the_built_in(
    own: dict[str, str], chosen: dict[str, str]
):
    """Each setting comes from the first that gives it; what is stored restores the same topic."""
    defaults = changed(BrokerConfig(), chosen).topic_defaults
    config = topic_config(defaults, own)
    for name, (field_name, kind, row) in rows(TopicConfig).items():
        text = own.get(name, chosen.get(name, format_value(row, row.default)))
        assert getattr(config, field_name) == parse_value(kind, row, text)
    stored = topic_overrides(own)
    assert stored.keys() == own.keys()
    assert topic_config(defaults, stored) == config
    assert defaults.chosen == chosen.keys()
