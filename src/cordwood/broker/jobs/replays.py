"""Replay service: record and list replays of dead letters, their settings and progress."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any

from cordwood.metadata.catalog import Catalog


class ReplayService:
    """Stores and lists replay records; the replay job alone defines their content."""

    def __init__(self, catalog: Catalog, meta_thread: Executor) -> None:
        self._catalog = catalog
        self._meta_thread = meta_thread

    def list(self) -> list[dict[str, Any]]:
        """Return every replay, the oldest first."""
        rows = [{"id": name, **record} for name, record in list(self._catalog.replays.items())]
        return sorted(rows, key=lambda row: (str(row.get("started", "")), row["id"]))

    async def put(self, replay_id: str, record: dict[str, Any]) -> None:
        """Store a replay's record, replacing the earlier one."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, self._catalog.put_replay, replay_id, record)
