"""The handlers of the HTTP listener: metrics, health, and a JSON API over the broker's services.

The pipeline and the command line use the API for what Kafka's protocol does not cover: bindings,
named readers, segments, and the delivery of staged work. Requests are messages of ``protocol.api``,
decoded before a handler runs; their fields are listed in ``docs/http.md``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any, TypeVar

from cordwood import __version__
from cordwood.broker.broker import Broker
from cordwood.broker.exposition import exposition
from cordwood.broker.health import topic_problems
from cordwood.broker.jobs.compaction import describe
from cordwood.broker.jobs.delivery import Delivery
from cordwood.broker.lag import group_lags
from cordwood.broker.time_slices import in_slices
from cordwood.config import overrides
from cordwood.decide.delivery import Part
from cordwood.errors import RequestError
from cordwood.log.write.partition import Partition
from cordwood.metadata.bundle_index import BundleEntry
from cordwood.metadata.keys import ReaderPartition, ScrubResult
from cordwood.model import TopicPartition
from cordwood.protocol.api import messages as m
from cordwood.server.http_routes import (
    HttpResponse,
    Routes,
    by_bytes,
    by_json,
    by_long_json,
    by_params,
)

T = TypeVar("T")

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OK = {"ok": True}


def http_routes(broker: Broker) -> Routes:
    """Return the routing table: (method, path) → the handler and the message it takes."""
    api, turn = HttpApi(broker), asyncio.Semaphore(1)
    return {
        ("GET", "/healthz"): by_params(m.Nothing, api.healthz),
        ("GET", "/livez"): by_params(m.Nothing, api.healthz),
        ("GET", "/readyz"): by_params(m.Nothing, api.readyz),
        ("GET", "/metrics"): by_params(m.Nothing, api.metrics),
        ("GET", "/api/health"): by_params(m.Nothing, api.health),
        ("GET", "/api/status"): by_params(m.Nothing, api.status),
        ("GET", "/api/topics"): by_params(m.ListTopics, api.topics),
        ("POST", "/api/cut"): by_json(m.Cut, api.cut),
        ("POST", "/api/reclaim"): by_json(m.Reclaim, api.reclaim),
        ("POST", "/api/accept-loss"): by_json(m.AcceptLoss, api.accept_loss),
        ("POST", "/api/accept-damage"): by_json(m.AcceptDamage, api.accept_damage),
        ("GET", "/api/scrub"): by_params(m.Nothing, api.scrub_state),
        ("POST", "/api/scrub"): by_json(m.Scrub, api.scrub),
        ("GET", "/api/pipeline"): by_params(m.Nothing, api.pipeline),
        ("GET", "/api/groups"): by_params(m.ListGroups, api.groups),
        ("GET", "/api/readers"): by_params(m.ListReaders, api.readers),
        ("POST", "/api/readers"): by_json(m.ChangeReader, api.change_reader),
        ("GET", "/api/routes"): by_params(m.Nothing, api.routes),
        ("POST", "/api/routes"): by_json(m.SetRoute, api.set_route),
        ("DELETE", "/api/routes"): by_params(m.RemoveRoute, api.remove_route),
        ("PUT", "/api/staging"): by_bytes(m.Upload, api.upload),
        ("DELETE", "/api/staging"): by_params(m.Discard, api.discard),
        ("GET", "/api/deliveries"): by_params(m.ListDeliveries, api.deliveries),
        ("POST", "/api/deliveries"): by_long_json(m.Deliver, api.deliver, turn),
        ("DELETE", "/api/deliveries"): by_params(m.GiveUpDelivery, api.give_up),
        ("GET", "/api/compaction"): by_params(m.ListCompaction, api.compaction),
        ("POST", "/api/compaction"): by_long_json(m.Compact, api.compact, turn),
        ("GET", "/api/archive"): by_params(m.ListBundles, api.archive),
        ("POST", "/api/archive"): by_long_json(m.RecordBundles, api.record_bundles, turn),
        ("GET", "/api/replays"): by_params(m.Nothing, api.replays),
        ("POST", "/api/replays"): by_long_json(m.RecordReplay, api.record_replay, turn),
    }


class HttpApi:
    """The handlers, one method per route."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def healthz(self, _: m.Nothing) -> HttpResponse:
        """The process is alive."""
        return HttpResponse.of({"status": "alive"})

    async def readyz(self, _: m.Nothing) -> HttpResponse:
        """Status 200 if everything can be served; otherwise 503 and what cannot."""
        ready, facts = self._broker.is_ready()
        return HttpResponse.of({"ready": ready, **facts}, 200 if ready else 503)

    async def health(self, _: m.Nothing) -> HttpResponse:
        """The body of ``/readyz``, always with status 200."""
        ready, facts = self._broker.is_ready()
        return HttpResponse.of({"ready": ready, **facts})

    async def metrics(self, _: m.Nothing) -> HttpResponse:
        """Metrics in the Prometheus text format."""
        return HttpResponse(await exposition(self._broker), content_type=METRICS_TYPE)

    async def status(self, _: m.Nothing) -> HttpResponse:
        """Version, cluster id, data directory, addresses and settings of this broker."""
        broker = self._broker
        return HttpResponse.of(
            {
                "version": __version__,
                "cluster_id": broker.store.catalog.cluster_id(),
                "data": str(broker.store.data.absolute()),
                "identity": broker.store.identity._asdict(),
                "addresses": broker.addresses,
                "topics": len(broker.store.topics),
                "config": overrides(broker.config),
                "ingress_topic": broker.config.ingress_topic,
                "dead_letter_topic": broker.config.dead_letter_topic,
            }
        )

    async def topics(self, query: m.ListTopics) -> HttpResponse:
        """Every topic, or that of ``?name=``; with partitions and segments unless ``?brief=1``."""
        names = [query.name] if query.name else sorted(self._broker.topics.all())
        brief = query.brief == "1"
        if not brief:
            await self._open(names)
        return await _written("topics", self._topics(names, brief=brief))

    async def _open(self, names: Iterable[str]) -> None:
        """Open those of the topics that exist, so that their partitions can be described."""
        async for name in in_slices(names):
            if name in self._broker.topics.all():
                await self._broker.topics.open_topic(name)

    def _topics(self, names: Sequence[str], *, brief: bool) -> Iterator[str]:
        """Yield the JSON in pieces; in a list of several, skip topics deleted in the meantime."""
        known, separator = self._broker.topics.all(), ""
        for name in names:
            if name in known or len(names) == 1:
                yield separator
                yield from self._topic(name, brief=brief)
                separator = ",\n  "

    def _topic(self, name: str, *, brief: bool) -> Iterator[str]:
        topic = self._broker.topics.get(name)
        described = {
            "name": name,
            "id": topic.id,
            "partition_count": topic.partition_count,
            "max_message_bytes": topic.config.max_message_bytes,
        }
        if brief:
            yield json.dumps(described)
            return
        head = json.dumps({**described, "config": overrides(topic.config)})
        yield f'{head[:-1]}, "partitions": ['
        for number, partition in enumerate(topic.online()):
            yield f"{', ' if number else ''}{json.dumps(self._partition(partition))}"
        problems = topic_problems(self._broker.store.health, name)
        yield f'], "problems": {json.dumps(problems)}}}'

    def _partition(self, partition: Partition) -> dict[str, Any]:
        entries = self._broker.store.catalog.segments(partition.tp).entries()
        return _partition(partition, {e.base_offset: e.scrub for e in entries if e.scrub})

    async def cut(self, request: m.Cut) -> HttpResponse:
        """Seal active segments now."""
        return HttpResponse.of({"sealed": await self._broker.monitor.cut(request.topic)})

    async def reclaim(self, request: m.Reclaim) -> HttpResponse:
        """Delete the segments that RECLAIM allows now, in one topic or in all."""
        return HttpResponse.of({"dropped": await self._broker.monitor.reclaim(request.topic)})

    async def accept_loss(self, request: m.AcceptLoss) -> HttpResponse:
        """Serve an offline partition without its lost records."""
        broker, tp = self._broker, TopicPartition(request.topic, request.partition)
        accepted = await broker.topics.on_writer(lambda: broker.store.accept_loss(tp))
        return HttpResponse.of(accepted._asdict())

    async def accept_damage(self, request: m.AcceptDamage) -> HttpResponse:
        """Accept the damaged records of a segment as lost; readers still cannot read them."""
        broker, tp = self._broker, TopicPartition(request.topic, request.partition)
        await broker.topics.open_partition(*tp)
        accept = broker.store.accept_damage
        ranges = await broker.topics.on_writer(lambda: accept(tp, request.segment))
        return HttpResponse.of(
            {"accepted": [each._replace(accepted=True)._asdict() for each in ranges]}
        )

    async def scrub(self, request: m.Scrub) -> HttpResponse:
        """Start a scrub of every sealed segment, or those of ``topic``; returns immediately."""
        run = await self._broker.scrub.scrub_now(request.topic)
        return HttpResponse.of(run.described())

    async def scrub_state(self, _: m.Nothing) -> HttpResponse:
        """Progress of the last scrub on demand, and the damage it found."""
        run = self._broker.scrub.last_run
        return HttpResponse.of({"running": False} if run is None else run.described())

    async def pipeline(self, _: m.Nothing) -> HttpResponse:
        """State of the embedded pipeline and its jobs."""
        return HttpResponse.of(self._broker.pipeline.described())

    async def groups(self, query: m.ListGroups) -> HttpResponse:
        """Consumer groups and every other cursor: offset, end and lag per partition."""
        store = self._broker.store
        cursors = list(store.catalog.cursors())
        await self._open({at.topic for at in cursors if query.group in {None, at.reader}})
        lags = group_lags(store, query.group)
        return await _listing("groups", (lag._asdict() for lag in lags))

    async def readers(self, query: m.ListReaders) -> HttpResponse:
        """Registered readers with their cursors, lag and retained bytes."""
        topic, readers = query.topic, self._broker.readers
        await self._open([topic] if topic else readers.topics())
        return await _listing("readers", readers.rows(topic))

    async def change_reader(self, request: m.ChangeReader) -> HttpResponse:
        """``action``: register (``create`` also creates the topic), remove, advance or reset."""
        readers, topic, reader = self._broker.readers, request.topic, request.reader
        if request.create:
            await self._broker.topics.ensure(topic, explicit=True)
        self._broker.topics.get(topic)
        if request.action == "register":
            await readers.register(topic, reader)
        elif request.action == "remove":
            await readers.remove(topic, reader)
        else:
            offset = _given("offset", request.offset)
            await self._broker.topics.open_partition(topic, request.partition)
            move = readers.advance if request.action == "advance" else readers.reset
            await move(TopicPartition(topic, request.partition), reader, offset)
        return HttpResponse.of(OK)

    async def routes(self, _: m.Nothing) -> HttpResponse:
        """Every binding."""
        return HttpResponse.of({"routes": self._broker.routes.list()})

    async def set_route(self, request: m.SetRoute) -> HttpResponse:
        """Bind ``key`` (``kind`` exact or prefix) to ``topic``."""
        await self._broker.routes.set(request.kind, request.key, request.topic)
        return HttpResponse.of(OK)

    async def remove_route(self, request: m.RemoveRoute) -> HttpResponse:
        """Remove the binding of ``?kind=&key=``."""
        await self._broker.routes.remove(request.kind, request.key)
        return HttpResponse.of(OK)

    async def upload(self, request: m.Upload, data: bytes) -> HttpResponse:
        """Upload one staged file of a job without access to the data directory: ``?job=&name=``."""
        await self._broker.deliveries.upload(request.job, request.name, data)
        return HttpResponse.of(OK)

    async def discard(self, request: m.Discard) -> HttpResponse:
        """Delete what ``?job=`` staged, unless a delivery of it is in progress."""
        await self._broker.deliveries.discard(request.job)
        return HttpResponse.of(OK)

    async def deliveries(self, query: m.ListDeliveries) -> HttpResponse:
        """The last batch of every query, or of ``?query=``: whether it is done, and if not, why."""
        deliveries, name = self._broker.deliveries, query.query
        rows = deliveries.describe(name)
        if name is not None and not rows:
            batch = await deliveries.last_batch(name)
            rows = {} if batch is None else {name: {"batch": batch, "done": True}}
        return HttpResponse.of({"deliveries": rows})

    async def deliver(self, request: m.Deliver) -> HttpResponse:
        """Append the staged batch of a query, exactly once."""
        delivery = await asyncio.to_thread(_delivery, request)  # there may be 100,000 parts
        return HttpResponse.of({"delivered": await self._broker.deliveries.deliver(delivery)})

    async def give_up(self, query: m.GiveUpDelivery) -> HttpResponse:
        """Discard the missing parts of the delivery of ``?query=`` so that the query continues."""
        return HttpResponse.of({"discarded": await self._broker.deliveries.give_up(query.query)})

    async def archive(self, query: m.ListBundles) -> HttpResponse:
        """The bundles of ``?topic=``, and the reader cursors that an archive stores with them."""
        describe = self._broker.archive.describe  # may be years of bundles: not on the loop
        return await asyncio.to_thread(lambda: HttpResponse.of(describe(query.topic)))

    async def record_bundles(self, request: m.RecordBundles) -> HttpResponse:
        """Record a job's bundles of ``topic`` and ``partition``; the broker verifies them."""
        tp = TopicPartition(request.topic, request.partition)
        bundles = [BundleEntry(**asdict(bundle)) for bundle in request.bundles]
        return HttpResponse.of((await self._broker.archive.record(tp, bundles))._asdict())

    async def replays(self, _: m.Nothing) -> HttpResponse:
        """Every replay of dead letters."""
        return HttpResponse.of({"replays": self._broker.replays.list()})

    async def record_replay(self, request: m.RecordReplay) -> HttpResponse:
        """Store the progress of replay ``id``, as ``record``."""
        await self._broker.replays.put(request.id, request.record)
        return HttpResponse.of(OK)

    async def compaction(self, query: m.ListCompaction) -> HttpResponse:
        """Every compacted partition, or those of ``?topic=``: state, plan and reason."""
        config = self._broker.config
        schedule = {
            "interval_ms": config.compaction_interval_ms,
            "delay_ms": config.compaction_delay_ms,
        }
        if query.brief:
            return HttpResponse.of({"schedule": schedule})
        await self._open([query.topic] if query.topic else [])
        looks = self._broker.compaction.looks(query.topic)
        return await _listing("partitions", map(describe, looks), schedule=schedule)

    async def compact(self, request: m.Compact) -> HttpResponse:
        """For jobs. ``action``: begin (returns orders), renew, finish, fail or release."""
        service, lease = self._broker.compaction, request.lease
        if request.action == "begin":
            orders = await service.begin(request.topic, demand=request.demand, dry=request.dry)
            return HttpResponse.of({"orders": orders})
        topic = _given("topic", request.topic)
        tp = TopicPartition(topic, _given("partition", request.partition))
        if request.action == "renew":
            service.renew(tp, lease)
        elif request.action == "finish":
            topic_id, jobs = _given("topic_id", request.topic_id), _given("jobs", request.jobs)
            await service.finish(tp, topic_id, jobs, _given("state", request.state), lease)
        elif request.action == "fail":
            await service.fail(tp, _given("error", request.error), lease)
        else:
            service.release(tp, lease)
        return HttpResponse.of(OK)


async def _listing(name: str, items: Iterable[dict[str, Any]], **others: object) -> HttpResponse:
    """Return a JSON object with a long list, one item per line; does not block the event loop."""
    separators = chain([""], repeat(",\n  "))
    texts = (f"{next(separators)}{json.dumps(item)}" for item in items)
    return await _written(name, texts, **others)


async def _written(name: str, texts: Iterable[str], **others: object) -> HttpResponse:
    """Like ``_listing``, for items that are already encoded as JSON."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in others.items())
    body = "".join([text async for text in in_slices(texts)])
    return HttpResponse(f'{{{head}"{name}": [\n  {body}\n]}}\n'.encode())


def _given(name: str, value: T | None) -> T:
    """Return a field that only some actions need; raise ``RequestError`` if it is missing."""
    if value is None:
        raise RequestError(f"{name} is missing; this action needs it")
    return value


def _partition(partition: Partition, scrubs: Mapping[int, ScrubResult]) -> dict[str, Any]:
    return {
        "partition": partition.tp.partition,
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "size_bytes": partition.size_bytes,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "size_bytes": segment.size_bytes,
                "records": segment.records,
                "first_ms": segment.first_ms,
                "newest_ms": segment.newest_ms,
                "state": segment.state.value,
                **_scrubbed(scrubs.get(segment.base_offset)),
            }
            for segment in partition.segments()
        ],
    }


def _scrubbed(scrub: ScrubResult | None) -> dict[str, Any]:
    """The time of the last scrub of a segment (null if never) and its counts of damaged ranges."""
    if scrub is None:
        return {"scrubbed_ms": None, "damaged_ranges": 0, "accepted_ranges": 0}
    return {
        "scrubbed_ms": scrub.at_ms,
        "damaged_ranges": len(scrub.damage),
        "accepted_ranges": len(scrub.accepted),
    }


def _delivery(request: m.Deliver) -> Delivery:
    cursors = {ReaderPartition(at.reader, at.topic, at.partition): at for at in request.cursors}
    return Delivery(
        query=request.query,
        batch=request.batch,
        job=request.job,
        parts=[
            Part(part.topic, part.partition, part.file, topic_id=part.topic_id, sha256=part.sha256)
            for part in request.parts
        ],
        cursors={where: at.offset for where, at in cursors.items()},
        starts={where: at.start for where, at in cursors.items() if at.start is not None},
        sources={where.topic: at.topic_id for where, at in cursors.items() if at.topic_id},
        is_once=request.once,
    )
