"""Broker settings that change while the broker runs: which ones, and how they combine.

Kafka's order applies: what was set at run time for this broker, then at run time for all brokers,
then what the broker was started with (flag, environment, file), then the default. Settings are
named as the settings tables name them, and Kafka's names are translated first. Pure: nothing is
stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cordwood.config import (
    BrokerConfig,
    TopicConfig,
    broker_setting,
    changed,
    nearest,
    rows,
)
from cordwood.errors import InvalidConfig, RequestError
from cordwood.settings.kafka_names import BROKER_ALIASES, in_milliseconds

BROKER_KIND: Final = "broker"  # of the settings in the metadata
ALL_BROKERS: Final = ""  # the resource name of the level that every broker takes
THIS_BROKER: Final = "1"  # the id of the only broker

Changes = Mapping[str, str | None]  # setting → text; None removes it from its level


class DynamicLevels(NamedTuple):
    """What is set at run time, by setting."""

    all_brokers: Mapping[str, str] = {}
    this_broker: Mapping[str, str] = {}

    def of(self, level: str) -> Mapping[str, str]:
        """Return one level by its resource name."""
        return self.all_brokers if level == ALL_BROKERS else self.this_broker

    def replaced(self, level: str, settings: Mapping[str, str]) -> DynamicLevels:
        """Return the levels with one of them replaced."""
        if level == ALL_BROKERS:
            return DynamicLevels(settings, self.this_broker)
        return DynamicLevels(self.all_brokers, settings)


def is_dynamic(name: str) -> bool:
    """Whether a setting takes effect while the broker runs; defaults of topics always do."""
    table = rows(BrokerConfig)
    return table[name][2].is_dynamic if name in table else name in rows(TopicConfig)


def translate(written: str, value: str | None) -> tuple[str, str | None]:
    """The name of a setting in the settings tables, and its value in the table's unit."""
    name, unit_ms = broker_setting(written)
    return name, value if value is None else str(in_milliseconds(value, unit_ms))


def combine(started_with: BrokerConfig, levels: DynamicLevels) -> BrokerConfig:
    """The settings in effect; raises ``InvalidConfig``."""
    return changed(started_with, {**levels.all_brokers, **levels.this_broker})


def plan_level(
    started_with: BrokerConfig, levels: DynamicLevels, level: str, changes: Changes
) -> DynamicLevels:
    """The levels after the changes of one, which must be valid together.

    Raises ``RequestError`` for a setting that takes effect at a start only, and ``InvalidConfig``.
    """
    fixed = sorted(name for name in changes if not is_dynamic(name))
    if fixed:
        raise _refusal(fixed)
    removed = {name for name, value in changes.items() if value is None}
    kept = {**levels.of(level), **changes}
    planned = levels.replaced(
        level, {name: str(value) for name, value in kept.items() if name not in removed}
    )
    combine(started_with, planned)
    return planned


def usable_levels(
    started_with: BrokerConfig, stored: Callable[[str, str], Mapping[str, str]]
) -> tuple[DynamicLevels, list[str]]:
    """The stored levels without what this release refuses, and a sentence for each refusal.

    ``stored`` returns the settings of a kind and name, as ``ClusterCatalog.config`` does.
    """
    problems = []
    kept = DynamicLevels()
    for level in (ALL_BROKERS, THIS_BROKER):
        for name, value in stored(BROKER_KIND, level).items():
            try:
                kept = plan_level(started_with, kept, level, {name: value})
            except RequestError as error:
                problems.append(str(error))
    return kept, problems


def _refusal(fixed: list[str]) -> RequestError:
    known = {**rows(BrokerConfig), **rows(TopicConfig), **BROKER_ALIASES}
    unknown = [name for name in fixed if name not in known]
    if unknown:
        return InvalidConfig(f"unknown setting {unknown[0]}{nearest(unknown[0], known)}")
    return RequestError(
        f"{', '.join(fixed)} cannot be changed while the broker runs; change the config file, the "
        "environment or the flags, and restart it"
    )
