"""One lock per query, kept only while a request of the query holds it or waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _QueryLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0  # that hold the lock or wait for it


class QueryLocks:
    """Runs the requests of each query one at a time."""

    def __init__(self) -> None:
        self._locks: dict[str, _QueryLock] = {}

    def __contains__(self, query: str) -> bool:
        """Whether a request of the query is running."""
        return query in self._locks

    def __len__(self) -> int:
        """Number of queries with a running request."""
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def held(self, query: str) -> AsyncIterator[None]:
        """Hold the lock of a query; drops the lock after the last request."""
        own = self._locks.setdefault(query, _QueryLock())
        own.requests += 1
        try:
            async with own.lock:
                yield
        finally:
            own.requests -= 1
            if not own.requests:
                del self._locks[query]
