"""Route service: bind routing keys to topics; bindings may change at run time."""

from __future__ import annotations

from cordwood.decide.routing import key_prefix
from cordwood.errors import InvalidTopic, RequestError, UnknownRoute
from cordwood.metadata.front import AsyncMetadata
from cordwood.model import is_topic_name
from cordwood.protocol.api.readers import RouteKind, RouteRow


class RouteService:
    """Sets, lists and removes bindings."""

    def __init__(self, metadata: AsyncMetadata) -> None:
        self._metadata = metadata

    def list(self) -> list[RouteRow]:
        """Return every binding, exact ones first."""
        bindings = self._metadata.cluster.bindings()
        exact = [RouteRow("exact", *binding) for binding in sorted(bindings.exact.items())]
        return exact + [RouteRow("prefix", *each) for each in sorted(bindings.prefix.items())]

    async def set(self, kind: RouteKind, key: str, topic: str) -> None:
        """Bind an exact key, or a prefix (the part up to the first dot), to a topic."""
        _check(kind, key)
        if not is_topic_name(topic):
            raise InvalidTopic(
                f"{topic!r} is not a valid topic name; use 1 to 249 characters of A-Z a-z 0-9 . _ -"
            )
        await self._metadata.run(self._metadata.cluster.put_route, kind, key, topic)

    async def remove(self, kind: RouteKind, key: str) -> None:
        """Remove a binding; the default rule applies to its keys again."""
        _check(kind, key)
        if not any((row.kind, row.key) == (kind, key) for row in self.list()):
            raise UnknownRoute(
                f"there is no {kind} binding for {key}; `cordwood route list` shows all bindings"
            )
        await self._metadata.run(self._metadata.cluster.delete_route, kind, key)


def _check(kind: RouteKind, key: str) -> None:
    if not key:
        raise RequestError("a binding needs a routing key")
    if kind == "prefix" and key_prefix(key) != key:
        raise RequestError(
            f"a prefix must end before the first dot: use {key_prefix(key)!r}, not {key!r}"
        )
