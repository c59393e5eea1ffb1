"""Settings of the broker that change while it runs: stored in the metadata, applied at once.

``decide.dynamic_settings`` decides whether a change is allowed and what is in effect after it. The
services that use a setting subscribe, and get the whole config after each change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cordwood.config import BrokerConfig
from cordwood.decide.dynamic_settings import (
    BROKER_KIND,
    Changes,
    DynamicLevels,
    combine,
    plan_level,
    usable_levels,
)
from cordwood.metadata.front import AsyncMetadata

logger = logging.getLogger("cordwood.broker")

Check = Callable[[BrokerConfig], Awaitable[None]]
Apply = Callable[[BrokerConfig], Awaitable[None] | None]


class DynamicSettings:
    """The settings in effect, where each comes from, and their changes. On the event loop."""

    def __init__(self, started_with: BrokerConfig, metadata: AsyncMetadata) -> None:
        """Combine what the broker was started with and what was set at run time before."""
        self.started_with = started_with
        self._metadata = metadata
        self.levels, problems = usable_levels(started_with, metadata.cluster.config)
        self.current = combine(started_with, self.levels)
        self._changing = asyncio.Lock()
        self._checks: list[Check] = []
        self._subscribers: list[Apply] = []
        for problem in problems:
            logger.warning("setting.ignored what was set at run time is refused: %s", problem)
        for name, value in {**self.levels.all_brokers, **self.levels.this_broker}.items():
            logger.info("setting.dynamic %s=%s set at run time", name, value)

    def subscribe(self, *subscribers: Apply) -> None:
        """Call these with the new config after each change."""
        self._subscribers += subscribers

    def check_with(self, check: Check) -> None:
        """Ask ``check`` before a change; it raises ``RequestError`` to refuse it."""
        self._checks.append(check)

    async def alter(
        self,
        level: str,
        plan: Callable[[DynamicLevels], Changes],
        *,
        validate_only: bool,
    ) -> None:
        """Change one level, all or nothing; returns when the change is durable and in effect."""
        async with self._changing:
            changes = plan(self.levels)
            levels = plan_level(self.started_with, self.levels, level, changes)
            config = combine(self.started_with, levels)
            for check in self._checks:
                await check(config)
            if validate_only:
                return
            put = self._metadata.cluster.put_config
            await self._metadata.run(put, BROKER_KIND, level, levels.of(level))
            self.levels, self.current = levels, config
            logger.info("setting.changed broker=%s %s", level or "all", dict(changes))
            for apply in self._subscribers:
                applied = apply(config)
                if applied is not None:
                    await applied
