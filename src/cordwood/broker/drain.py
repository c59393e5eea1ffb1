"""Drain: acknowledge every route for one reader in one step.

A route is a topic that the router has delivered to or that a routing key is bound to. A topic whose
``cleanup.policy`` includes consume and that waits for the reader counts as well: it may be a route
whose deliveries are forgotten. The ingress topic and the dead-letter topic are no routes; they are
drained only if they are named.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.broker.jobs.delivery import DeliveryService
from cordwood.broker.monitor import Monitor
from cordwood.broker.readers import ReaderService
from cordwood.broker.topics import TopicService
from cordwood.config import BrokerConfig
from cordwood.decide.retention import RetentionPlan
from cordwood.decide.routing import router_query
from cordwood.errors import UnknownReader
from cordwood.log.write.partition import Partition
from cordwood.metadata.front import AsyncMetadata
from cordwood.protocol.api.readers import Drained, DrainedPartition, DrainReader


class DrainService:
    """Moves a reader's cursors to the ends of its topics."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        topics: TopicService,
        readers: ReaderService,
        deliveries: DeliveryService,
        monitor: Monitor,
        metadata: AsyncMetadata,
    ) -> None:
        self._config = config
        self._topics = topics
        self._readers = readers
        self._deliveries = deliveries
        self._monitor = monitor
        self._metadata = metadata

    async def drain(self, request: DrainReader) -> Drained:
        """Move all cursors or none; raises ``UnknownReader`` or ``PartitionOffline``.

        A topic on which the reader is not registered is registered first if the request asks for
        that, is an error if the request names it, and is skipped otherwise.
        """
        names = list(request.topics) or await self._routes(request.reader)
        if request.ingress and self._config.ingress_topic not in names:
            names.append(self._config.ingress_topic)
        drained, skipped = self._select(request, names)
        partitions = [each for name in drained for each in await self._open(name)]
        rows = tuple(self._rows(request.reader, partitions))
        if not request.dry_run:
            for name in drained:
                await self._readers.register(name, request.reader)
            offsets = {each.tp: row.end for each, row in zip(partitions, rows, strict=True)}
            await self._readers.reset_all(request.reader, offsets)
        return Drained(rows, tuple(skipped))

    def _select(self, request: DrainReader, names: list[str]) -> tuple[list[str], list[str]]:
        """Return the topics to drain and those to skip."""
        known = {name for name in names if self._is_registered(name, request.reader)}
        skipped = [] if request.register else [name for name in names if name not in known]
        if skipped and (request.topics or not known):
            raise UnknownReader(
                f"reader {request.reader} is not registered on {', '.join(skipped)}; register it "
                "there first, or drain with --register"
            )
        if not names:
            raise UnknownReader(
                f"there is no route that reader {request.reader} could drain; name a topic"
            )
        return [name for name in names if name not in skipped], skipped

    def _is_registered(self, name: str, reader: str) -> bool:
        self._topics.get(name)
        return reader in self._metadata.readers.registered(name)

    async def _routes(self, reader: str) -> list[str]:
        """Return the topics that are routes, sorted."""
        ingress = self._config.ingress_topic
        query = router_query(ingress)
        delivered = (await self._deliveries.describe(query)).get(query)
        bindings = self._metadata.cluster.bindings()
        routes = {*bindings.exact.values(), *bindings.prefix.values()}
        routes |= set(delivered.topics if delivered else ())
        routes |= {
            name
            for name, topic in self._topics.all().items()
            if "consume" in topic.config.cleanup_policy and self._is_registered(name, reader)
        }
        routes -= {ingress, self._config.dead_letter_topic}
        return sorted(routes & self._topics.all().keys())

    async def _open(self, name: str) -> list[Partition]:
        topic = await self._topics.open_topic(name)
        return [topic.partition(number) for number in range(topic.partition_count)]

    def _rows(self, reader: str, partitions: list[Partition]) -> Iterator[DrainedPartition]:
        for partition in partitions:
            end = partition.high_watermark
            start = min(end, self._readers.position(partition.tp, reader))
            before = self._monitor.plan(partition)
            after = self._monitor.plan(partition, moved={reader: end})
            yield DrainedPartition(
                topic=partition.tp.topic,
                partition=partition.tp.partition,
                start=start,
                end=end,
                records=end - max(start, min(end, partition.log_start_offset)),
                released_segments=len(after.drops) - len(before.drops),
                released_bytes=_bytes(after) - _bytes(before),
            )


def _bytes(plan: RetentionPlan) -> int:
    return sum(drop.segment.size_bytes for drop in plan.drops)
