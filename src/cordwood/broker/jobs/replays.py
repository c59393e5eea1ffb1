"""The service for replays of dead letters: what was replayed, how, and how far it has come."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any

from cordwood.metadata.catalog import Catalog


class ReplayService:
    """Record replays and list them; what a record says is the job's own business."""

    def __init__(self, catalog: Catalog, meta_thread: Executor) -> None:
        self._catalog = catalog
        self._meta_thread = meta_thread

    def list(self) -> list[dict[str, Any]]:
        """Every replay, the oldest first."""
        rows = [{"id": name, **record} for name, record in list(self._catalog.replays.items())]
        return sorted(rows, key=lambda row: (str(row.get("started", "")), row["id"]))

    async def put(self, replay_id: str, record: dict[str, Any]) -> None:
        """What a replay has done so far."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, self._catalog.put_replay, replay_id, record)
