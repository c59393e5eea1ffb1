"""Route service: bind routing keys to topics; bindings may change at run time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from cordwood.decide.routing import key_prefix
from cordwood.errors import InvalidTopic, RequestError, UnknownRoute
from cordwood.metadata.catalog import Catalog
from cordwood.model import is_topic_name


class RouteService:
    """Sets, lists and removes bindings."""

    def __init__(self, catalog: Catalog, meta_thread: Executor) -> None:
        self._catalog = catalog
        self._meta_thread = meta_thread

    def list(self) -> list[dict[str, str]]:
        """Return every binding, exact ones first."""
        bindings = self._catalog.bindings()
        return [
            {"kind": kind, "key": key, "topic": topic}
            for kind, bound in (("exact", bindings.exact), ("prefix", bindings.prefix))
            for key, topic in sorted(bound.items())
        ]

    async def set(self, kind: str, key: str, topic: str) -> None:
        """Bind an exact key, or a prefix (the part up to the first dot), to a topic."""
        _check(kind, key)
        if not is_topic_name(topic):
            raise InvalidTopic(f"{topic!r} cannot name a topic; use 1 to 249 of A-Z a-z 0-9 . _ -")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, self._catalog.put_route, kind, key, topic)

    async def remove(self, kind: str, key: str) -> None:
        """Remove a binding; the default rule applies to its keys again."""
        _check(kind, key)
        if not any((row["kind"], row["key"]) == (kind, key) for row in self.list()):
            raise UnknownRoute(
                f"there is no {kind} binding of {key}; `cordwood route list` has all"
            )
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._meta_thread, self._catalog.delete_route, kind, key)


def _check(kind: str, key: str) -> None:
    if kind not in {"exact", "prefix"}:
        raise RequestError(f"a binding is exact or prefix, not {kind!r}")
    if not key:
        raise RequestError("a binding needs a routing key")
    if kind == "prefix" and key_prefix(key) != key:
        raise RequestError(f"a prefix ends before the first dot: {key_prefix(key)!r}, not {key!r}")
