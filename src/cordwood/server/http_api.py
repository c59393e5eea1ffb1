"""The handlers of the HTTP listener: metrics, health, and a JSON API over the broker's services.

The pipeline and the command line use the API for what Kafka's protocol does not cover: bindings,
named readers, segments, and the delivery of staged work. Requests are messages of ``protocol.api``,
decoded before a handler runs; their fields are listed in ``docs/http.md``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Final

import msgspec

from cordwood.broker.broker import Broker
from cordwood.broker.exposition import exposition
from cordwood.broker.health import topic_problems
from cordwood.broker.jobs.compaction import describe
from cordwood.broker.jobs.delivery_request import Delivery
from cordwood.broker.lag import group_lags
from cordwood.broker.session import Session
from cordwood.broker.time_slices import in_slices
from cordwood.config import TopicConfig, TopicDefaults, format_value, overrides
from cordwood.config import rows as config_rows
from cordwood.errors import RequestError
from cordwood.log.lifecycle.live_topics import LiveTopic
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import SegmentEntry
from cordwood.model import SegmentInfo, TopicPartition
from cordwood.protocol.api import (
    archive,
    compaction,
    compression,
    deliveries,
    readers,
    status,
    topics,
)
from cordwood.protocol.api.call import Done
from cordwood.server.http_openapi import openapi
from cordwood.server.http_routes import HttpResponse, HttpRoute, api_route
from cordwood.version import __version__

PART_BYTES: Final = 65_536  # of a listing that is sent as it is produced
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that takes no parameters."""


class HttpApi:
    """The handlers, one method per route, of the requests of one session."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self.session = session

    async def healthz(self, _: NoFields) -> dict[str, str]:
        """The process is alive."""
        return {"status": "alive"}

    async def readyz(self, _: NoFields) -> HttpResponse:
        """Status 200 if everything can be served; otherwise 503 and what cannot."""
        health = self._broker.health()
        return HttpResponse.of(health, 200 if health.ready else 503)

    async def get_health(self, _: status.GetHealth) -> status.Health:
        """The body of ``/readyz``, always with status 200."""
        return self._broker.health()

    async def metrics(self, _: NoFields) -> HttpResponse:
        """Metrics in the Prometheus text format."""
        return HttpResponse(await exposition(self._broker), content_type=METRICS_TYPE)

    async def get_status(self, _: status.GetBrokerStatus) -> status.BrokerStatus:
        """Version, cluster id, data directory, addresses and settings of this broker."""
        broker = self._broker
        return status.BrokerStatus(
            version=__version__,
            cluster_id=broker.store.metadata.cluster.cluster_id(),
            data=str(broker.store.data.absolute()),
            identity=status.DirectoryIdentity(*broker.store.directory.identity),
            addresses=dict(broker.addresses),
            topics=len(broker.store.topics),
            config=overrides(broker.config),
            ingress_topic=broker.config.ingress_topic,
            dead_letter_topic=broker.config.dead_letter_topic,
        )

    async def openapi(self, _: NoFields) -> HttpResponse:
        """This API as an OpenAPI document."""
        return HttpResponse.of(openapi(ROUTES))

    async def list_topics(self, query: topics.ListTopics) -> HttpResponse:
        """Every topic, or that of ``?name=``; with partitions and segments unless ``?brief=1``."""
        names = [query.name] if query.name else sorted(self._broker.topics.all())
        if query.brief == "1":
            return await _listing("topics", map(self._summary, self._known(names)))
        await self._open(names)
        return await _streamed("topics", self._topics(names))

    async def _open(self, names: Iterable[str]) -> None:
        """Open those of the topics that exist, so that their partitions can be described."""
        async for name in in_slices(names):
            if name in self._broker.topics.all():
                await self._broker.topics.open_topic(name)

    def _known(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the names; of several, skip topics that were deleted in the meantime."""
        known = self._broker.topics.all()
        return (name for name in names if name in known or len(names) == 1)

    def _topics(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the JSON in pieces: a topic may have ten thousand partitions."""
        separator = b""
        for name in self._known(names):
            topic, summary = self._broker.topics.get(name), self._summary(name)
            config, sources = _settings(topic, self._broker.config.topic_defaults)
            head = topics.TopicDetail(
                **msgspec.structs.asdict(summary),
                config=config,
                sources=sources,
                problems=topic_problems(self._broker.store.health, name),
            )
            before, _, after = msgspec.json.encode(head).rpartition(b'"partitions":[]')
            yield separator + before + b'"partitions":['
            for number, partition in enumerate(topic.online()):
                yield (b"," if number else b"") + msgspec.json.encode(self._partition(partition))
            yield b"]" + after
            separator = b",\n  "

    def _summary(self, name: str) -> topics.TopicSummary:
        topic = self._broker.topics.get(name)
        bytes_max = topic.config.max_message_bytes
        return topics.TopicSummary(name, topic.id, topic.partition_count, bytes_max)

    def _partition(self, partition: Partition) -> topics.PartitionDetail:
        entries = self._broker.store.metadata.cluster.segments(partition.tp).entries()
        return _partition(partition, {entry.base_offset: entry for entry in entries})

    async def cut(self, request: topics.CutTopic) -> topics.SegmentsSealed:
        """Seal active segments now."""
        return topics.SegmentsSealed(await self._broker.monitor.cut(request.topic))

    async def reclaim(self, request: topics.ReclaimTopics) -> topics.SegmentsReclaimed:
        """Delete the segments that RECLAIM allows now, in one topic or in all."""
        return topics.SegmentsReclaimed(await self._broker.monitor.reclaim(request.topic))

    async def list_held(self, query: topics.ListHeld) -> HttpResponse:
        """Sealed segments that are due for deletion, and the readers or archive that hold them."""
        if query.topic:
            await self._broker.topics.open_topic(query.topic)
        return await _listing("held", self._broker.monitor.held(query.topic))

    async def accept_loss(self, request: topics.AcceptLoss) -> topics.LossAccepted:
        """Serve an offline partition without its lost records."""
        broker, tp = self._broker, TopicPartition(request.topic, request.partition)
        accepted = await broker.topics.on_writer(lambda: broker.store.accept_loss(tp))
        return topics.LossAccepted(*accepted)

    async def accept_damage(self, request: topics.AcceptDamage) -> topics.DamageAccepted:
        """Accept the damaged records of a segment as lost; readers still cannot read them."""
        broker, tp = self._broker, TopicPartition(request.topic, request.partition)
        await broker.topics.open_partition(*tp)
        accept = broker.store.segments.accept_damage
        ranges = await broker.topics.on_writer(lambda: accept(tp, request.segment))
        return topics.DamageAccepted(
            tuple(topics.DamageDetail(*each._replace(accepted=True)) for each in ranges)
        )

    async def start_scrub(self, request: topics.StartScrub) -> topics.ScrubStatus:
        """Start a scrub of every sealed segment, or those of ``topic``; returns immediately."""
        return (await self._broker.scrub.scrub_now(request.topic)).status()

    async def get_scrub(self, _: topics.GetScrub) -> topics.ScrubStatus:
        """Progress of the last scrub on demand, and the damage it found."""
        run = self._broker.scrub.last_run
        return topics.ScrubStatus() if run is None else run.status()

    async def start_compression(
        self, request: compression.StartCompression
    ) -> compression.CompressionProgress:
        """Start to compress the sealed segments of a topic, or list them; returns immediately."""
        run = await self._broker.compression.compress_now(request.topic, dry=request.dry)
        return run.progress()

    async def get_compression(
        self, _: compression.GetCompression
    ) -> compression.CompressionProgress:
        """Progress of the last compression on demand."""
        run = self._broker.compression.last_run
        return compression.CompressionProgress() if run is None else run.progress()

    async def get_pipeline(self, _: status.GetPipeline) -> status.PipelineReport:
        """State of the embedded pipeline and its jobs."""
        return self._broker.pipeline.report()

    async def list_groups(self, query: readers.ListGroups) -> HttpResponse:
        """Consumer groups and every other cursor: offset, end and lag per partition."""
        store = self._broker.store
        cursors = list(store.metadata.readers.cursors())
        await self._open({at.topic for at in cursors if query.group in {None, at.reader}})
        return await _listing("groups", group_lags(store, query.group))

    async def list_readers(self, query: readers.ListReaders) -> HttpResponse:
        """Registered readers with their cursors, lag and retained bytes."""
        topic, service = query.topic, self._broker.readers
        await self._open([topic] if topic else service.topics())
        return await _listing("readers", service.rows(topic))

    async def change_reader(self, request: readers.ChangeReader) -> Done:
        """``action``: register (``create`` also creates the topic), remove, advance or reset."""
        service, topic, reader = self._broker.readers, request.topic, request.reader
        if request.create:
            await self._broker.topics.ensure(topic, explicit=True)
        self._broker.topics.get(topic)
        if request.action == "register":
            await service.register(topic, reader)
        elif request.action == "remove":
            await service.remove(topic, reader)
        else:
            if request.offset is None:
                raise RequestError(f"$.offset: missing; {request.action} needs it")
            await self._broker.topics.open_partition(topic, request.partition)
            move = service.advance if request.action == "advance" else service.reset
            await move(TopicPartition(topic, request.partition), reader, request.offset)
        return Done()

    async def drain_reader(self, request: readers.DrainReader) -> readers.Drained:
        """Move a reader's cursors to the ends of all routes, or of ``topics``."""
        return await self._broker.drains.drain(request)

    async def list_routes(self, _: readers.ListRoutes) -> readers.RouteList:
        """Every binding."""
        return readers.RouteList(tuple(self._broker.routes.list()))

    async def set_route(self, request: readers.SetRoute) -> Done:
        """Bind ``key`` (``kind`` exact or prefix) to ``topic``."""
        await self._broker.routes.set(request.kind, request.key, request.topic)
        return Done()

    async def remove_route(self, request: readers.RemoveRoute) -> Done:
        """Remove the binding of ``?kind=&key=``."""
        await self._broker.routes.remove(request.kind, request.key)
        return Done()

    async def upload(self, request: deliveries.UploadFile, data: bytes) -> Done:
        """Upload one staged file of a job without access to the data directory: ``?job=&name=``."""
        await self._broker.deliveries.staged.upload(request.job, request.name, data)
        return Done()

    async def discard(self, request: deliveries.DiscardJob) -> Done:
        """Delete what ``?job=`` staged, unless a delivery of it is in progress."""
        await self._broker.deliveries.staged.discard(request.job)
        return Done()

    async def list_deliveries(self, query: deliveries.ListDeliveries) -> deliveries.DeliveryList:
        """The last batch of every query, or of ``?query=``: whether it is done, and if not, why."""
        return deliveries.DeliveryList(await self._broker.deliveries.describe(query.query))

    async def deliver(self, request: deliveries.Deliver) -> deliveries.Delivered:
        """Append the staged batch of a query, exactly once."""
        delivery = await asyncio.to_thread(Delivery.of, request)  # there may be 100,000 parts
        return deliveries.Delivered(await self._broker.deliveries.deliver(delivery))

    async def give_up(self, query: deliveries.GiveUpDelivery) -> deliveries.Discarded:
        """Discard the missing parts of the delivery of ``?query=`` so that the query continues."""
        return deliveries.Discarded(await self._broker.deliveries.give_up(query.query))

    async def list_bundles(self, query: archive.ListBundles) -> HttpResponse:
        """The bundles of ``?topic=``, and the reader cursors that an archive stores with them."""
        describe = self._broker.archive.describe  # may be years of bundles: not on the loop
        return await asyncio.to_thread(lambda: HttpResponse.of(describe(query.topic)))

    async def record_bundles(self, request: archive.RecordBundles) -> archive.BundlesRecorded:
        """Record a job's bundles of ``topic`` and ``partition``; the broker verifies them."""
        tp = TopicPartition(request.topic, request.partition)
        return await self._broker.archive.record(tp, request.bundles)

    async def list_replays(self, _: deliveries.ListReplays) -> deliveries.ReplayList:
        """Every replay of dead letters."""
        return deliveries.ReplayList(tuple(self._broker.replays.list()))

    async def record_replay(self, request: deliveries.RecordReplay) -> Done:
        """Store the progress of replay ``id``, as ``record``."""
        await self._broker.replays.put(request.id, request.record)
        return Done()

    async def list_compaction(self, query: compaction.ListCompaction) -> HttpResponse:
        """Every compacted partition, or those of ``?topic=``: state, plan and reason."""
        config = self._broker.config
        times = compaction.CompactionTimes(
            config.compaction_interval_ms, config.compaction_delay_ms
        )
        if query.brief:
            return HttpResponse.of(compaction.CompactionStatus(times))
        await self._open([query.topic] if query.topic else [])
        looks = self._broker.compaction.looks(query.topic)
        return await _listing("partitions", map(describe, looks), schedule=times)

    async def compact(
        self, request: compaction.CompactionCall
    ) -> compaction.CompactionOrders | Done:
        """For jobs. ``action``: begin (returns orders), renew, finish, fail or release."""
        return await self._broker.compaction.handle(request)


async def _listing(name: str, items: Iterable[object], **others: object) -> HttpResponse:
    """Return a JSON object with a long list, one item per line; does not block the event loop."""
    separators = chain([b""], repeat(b",\n  "))
    texts = (next(separators) + msgspec.json.encode(item) for item in items)
    return await _streamed(name, texts, **others)


async def _streamed(name: str, texts: Iterable[bytes], **others: object) -> HttpResponse:
    """Like ``_listing``, for items that are already encoded as JSON.

    An error in the first part is raised here, before the head of the answer is sent.
    """
    head = b"".join(
        b'"%b": %b, ' % (key.encode(), msgspec.json.encode(value)) for key, value in others.items()
    )
    parts = _parts(b'{%b"%b": [\n  ' % (head, name.encode()), in_slices(texts))
    first = await anext(parts)

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return HttpResponse(body())


async def _parts(head: bytes, texts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the JSON in parts of about ``PART_BYTES``."""
    part = [head]
    size_bytes = len(head)
    async for text in texts:
        part.append(text)
        size_bytes += len(text)
        if size_bytes >= PART_BYTES:
            yield b"".join(part)
            part, size_bytes = [], 0
    yield b"".join([*part, b"\n]}\n"])


def _settings(topic: LiveTopic, defaults: TopicDefaults) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that are not built-in defaults, and what sets each of them."""
    config, table = {}, config_rows(TopicConfig)
    for name in [name for name in table if name in topic.overrides or name in defaults.chosen]:
        field_name, _, row = table[name]
        config[name] = format_value(row, getattr(topic.config, field_name))
    return config, {name: "topic" if name in topic.overrides else "broker" for name in config}


def _partition(partition: Partition, entries: Mapping[int, SegmentEntry]) -> topics.PartitionDetail:
    return topics.PartitionDetail(
        partition=partition.tp.partition,
        log_start_offset=partition.log_start_offset,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        size_bytes=partition.size_bytes,
        segments=tuple(
            _segment(segment, entries.get(segment.base_offset)) for segment in partition.segments()
        ),
    )


def _segment(segment: SegmentInfo, entry: SegmentEntry | None) -> topics.SegmentDetail:
    scrub = entry.scrub if entry else None
    compressed = entry.compression if entry else None
    return topics.SegmentDetail(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        records=segment.records,
        first_ms=segment.first_ms,
        newest_ms=segment.newest_ms,
        state=segment.state.value,
        scrubbed_ms=scrub.at_ms if scrub else None,
        damaged_ranges=len(scrub.damage) if scrub else 0,
        accepted_ranges=len(scrub.accepted) if scrub else 0,
        codec=compressed.codec if compressed and not compressed.is_kept else None,
        bytes_before=compressed.bytes_before if compressed else segment.size_bytes,
    )


ROUTES: Final = (
    HttpRoute(NoFields, HttpApi.healthz, "/healthz"),
    HttpRoute(NoFields, HttpApi.healthz, "/livez"),
    HttpRoute(NoFields, HttpApi.readyz, "/readyz"),
    HttpRoute(NoFields, HttpApi.metrics, "/metrics"),
    HttpRoute(NoFields, HttpApi.openapi, "/openapi.json"),
    api_route(status.GetHealth, HttpApi.get_health),
    api_route(status.GetBrokerStatus, HttpApi.get_status),
    api_route(topics.ListTopics, HttpApi.list_topics),
    api_route(topics.CutTopic, HttpApi.cut),
    api_route(topics.ReclaimTopics, HttpApi.reclaim),
    api_route(topics.ListHeld, HttpApi.list_held),
    api_route(topics.AcceptLoss, HttpApi.accept_loss),
    api_route(topics.AcceptDamage, HttpApi.accept_damage),
    api_route(topics.GetScrub, HttpApi.get_scrub),
    api_route(topics.StartScrub, HttpApi.start_scrub),
    api_route(compression.GetCompression, HttpApi.get_compression),
    api_route(compression.StartCompression, HttpApi.start_compression),
    api_route(status.GetPipeline, HttpApi.get_pipeline),
    api_route(readers.ListGroups, HttpApi.list_groups),
    api_route(readers.ListReaders, HttpApi.list_readers),
    api_route(readers.ChangeReader, HttpApi.change_reader),
    api_route(readers.DrainReader, HttpApi.drain_reader),
    api_route(readers.ListRoutes, HttpApi.list_routes),
    api_route(readers.SetRoute, HttpApi.set_route),
    api_route(readers.RemoveRoute, HttpApi.remove_route),
    api_route(deliveries.UploadFile, HttpApi.upload),
    api_route(deliveries.DiscardJob, HttpApi.discard),
    api_route(deliveries.ListDeliveries, HttpApi.list_deliveries),
    api_route(deliveries.Deliver, HttpApi.deliver, is_long=True),
    api_route(deliveries.GiveUpDelivery, HttpApi.give_up),
    api_route(compaction.ListCompaction, HttpApi.list_compaction),
    api_route(compaction.CompactionCall, HttpApi.compact, is_long=True),
    api_route(archive.ListBundles, HttpApi.list_bundles),
    api_route(archive.RecordBundles, HttpApi.record_bundles, is_long=True),
    api_route(deliveries.ListReplays, HttpApi.list_replays),
    api_route(deliveries.RecordReplay, HttpApi.record_replay, is_long=True),
)
