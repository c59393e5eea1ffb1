"""Replay service: record and list replays of dead letters, their settings and progress."""

from __future__ import annotations

import msgspec

from cordwood.metadata.front import AsyncMetadata
from cordwood.protocol.api.deliveries import ReplayRecord, ReplayRow


class ReplayService:
    """Stores and lists replay records; the replay job alone defines their content."""

    def __init__(self, metadata: AsyncMetadata) -> None:
        self._metadata = metadata

    def list(self) -> list[ReplayRow]:
        """Return every replay, the oldest first."""
        rows = [
            msgspec.convert({"id": name, **record}, ReplayRow)
            for name, record in list(self._metadata.readers.replays.items())
        ]
        return sorted(rows, key=lambda row: (row.started, row.id))

    async def put(self, replay_id: str, record: ReplayRecord) -> None:
        """Store a replay's record, replacing the earlier one."""
        stored = msgspec.structs.asdict(record)
        await self._metadata.run(self._metadata.readers.put_replay, replay_id, stored)
