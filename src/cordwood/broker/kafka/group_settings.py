"""Settings of one consumer group (GROUP in DescribeConfigs): stored, and applied at once.

A group may have its own timeouts instead of the broker's ``group.consumer.*``, within the same
bounds. They concern groups of KIP-848, whose members are told their timeouts by the broker; as in
Kafka, they can be set before the group exists, and stay when it is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.kafka.config_plans import Plan
from cordwood.broker.kafka.described_settings import (
    Source,
    broker_synonyms,
    described,
)
from cordwood.broker.kafka.group_coordinator import GroupCoordinator
from cordwood.config import BrokerConfig, changed, nearest, rows
from cordwood.decide.groups.messages import GroupSettings
from cordwood.errors import InvalidConfig, RequestError
from cordwood.metadata.front import AsyncMetadata
from cordwood.protocol.kafka.messages.configs import ConfigSynonym, DescribedConfig
from cordwood.settings.groups import find_timeout_conflict

logger = logging.getLogger("cordwood.broker")

KIND: Final = "group"  # of the settings in the metadata
BROKER_SETTINGS: Final = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}  # setting of a group → the broker's setting that is its default


def settings_of(own: Mapping[str, str], broker: BrokerConfig) -> GroupSettings:
    """Return the settings of a group that sets ``own`` itself; raises ``InvalidConfig``."""
    unknown = sorted(set(own) - set(BROKER_SETTINGS))
    if unknown:
        known = nearest(unknown[0], BROKER_SETTINGS)
        raise InvalidConfig(f"a group has no setting {unknown[0]}{known}")
    config = changed(broker, {BROKER_SETTINGS[name]: text for name, text in own.items()})
    if conflict := find_timeout_conflict(config):
        raise InvalidConfig(conflict)
    settings = GroupSettings.from_config(config)
    if settings.consumer_session_timeout_ms <= settings.consumer_heartbeat_interval_ms:
        raise InvalidConfig(
            "consumer.session.timeout.ms must be longer than consumer.heartbeat.interval.ms, or "
            "members would be removed between two heartbeats"
        )
    return settings


class GroupConfigs:
    """The settings of all groups. On the event loop."""

    def __init__(
        self, settings: DynamicSettings, metadata: AsyncMetadata, coordinator: GroupCoordinator
    ) -> None:
        """Apply what is stored."""
        self._settings = settings
        self._metadata = metadata
        self._coordinator = coordinator
        self._changing = asyncio.Lock()
        for group_id in self.names():
            self._restore(group_id)

    def _restore(self, group_id: str) -> None:
        try:
            own = settings_of(self._own(group_id), self._settings.current)
        except InvalidConfig as error:
            logger.warning("setting.ignored group=%s %s", group_id, error)
        else:
            self._coordinator.groups.configure(group_id, own)

    def names(self) -> list[str]:
        """Return the groups that set something themselves."""
        return self._metadata.cluster.configured(KIND)

    def _own(self, group_id: str) -> Mapping[str, str]:
        return self._metadata.cluster.config(KIND, group_id)

    def described(self, group_id: str) -> Iterator[DescribedConfig]:
        """Return the settings of a group, which need not exist yet."""
        _check_group(group_id)
        return self._described(self._own(group_id))

    def _described(self, own: Mapping[str, str]) -> Iterator[DescribedConfig]:
        for name, broker_name in BROKER_SETTINGS.items():
            _, kind, row = rows(BrokerConfig)[broker_name]
            synonyms = broker_synonyms(broker_name, self._settings)
            if name in own:
                synonyms.insert(0, ConfigSynonym(name, own[name], Source.GROUP))
            yield described(name, kind, row, synonyms)

    async def alter(self, group_id: str, plan: Plan, *, validate_only: bool) -> None:
        """Change the settings of a group, all or none; raises ``RequestError``."""
        _check_group(group_id)
        async with self._changing:
            own = self._own(group_id)
            planned = {**own, **plan(own, lambda _: None)}
            unknown = {name: "1" for name in planned if name not in BROKER_SETTINGS}
            kept = {name: text for name, text in planned.items() if text is not None}
            settings = settings_of(unknown or kept, self._settings.current)
            if validate_only:
                return
            await self._metadata.run(self._metadata.cluster.put_config, KIND, group_id, kept)
            self._coordinator.groups.configure(group_id, settings if kept else None)


def _check_group(group_id: str) -> None:
    if not group_id:
        raise RequestError("settings of a group need the name of the group")
