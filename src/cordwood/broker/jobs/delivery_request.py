"""What a driver asks to deliver.

A delivery may have 100,000 parts, so what walks all of them runs on a background thread.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cordwood.decide.delivery import Part
from cordwood.log.staging.area import check_name, check_sha256
from cordwood.metadata.keys import ReaderPartition
from cordwood.protocol.api.deliveries import Deliver


class Delivery(NamedTuple):
    """A driver's append request; the parts of each partition are in append order."""

    query: str
    batch: int
    job: str
    parts: Sequence[Part]
    cursors: Mapping[ReaderPartition, int]
    starts: Mapping[ReaderPartition, int] = MappingProxyType({})  # where the cursors must stand now
    sources: Mapping[str, str] = MappingProxyType({})  # ids of the topics that the cursors are on
    is_once: bool = False  # this is the query's only batch

    @classmethod
    def of(cls, request: Deliver) -> Delivery:
        """Return what a request of the API asks for."""
        cursors = {ReaderPartition(at.reader, at.topic, at.partition): at for at in request.cursors}
        parts = (
            Part(part.topic, part.partition, part.file, topic_id=part.topic_id, sha256=part.sha256)
            for part in request.parts
        )
        return cls(
            query=request.query,
            batch=request.batch,
            job=request.job,
            parts=list(parts),
            cursors={where: at.offset for where, at in cursors.items()},
            starts={where: at.start for where, at in cursors.items() if at.start is not None},
            sources={where.topic: at.topic_id for where, at in cursors.items() if at.topic_id},
            is_once=request.once,
        )

    def targets(self) -> dict[str, str]:
        """Return the topics of the parts with the ids the query knows, empty where it knows none.

        Raises ``RequestError`` for an unsafe file name, or a file without its sha256.
        """
        targets: dict[str, str] = {}
        for part in self.parts:
            check_sha256(part.sha256, check_name(part.file, "file"))
            targets[part.topic] = part.topic_id or targets.get(part.topic, "")
        return targets

    def limited(self, topics: Container[str]) -> Delivery:
        """Return the delivery without the parts of other topics."""
        return self._replace(parts=[part for part in self.parts if part.topic in topics])
