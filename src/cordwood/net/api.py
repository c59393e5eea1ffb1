"""What the HTTP door answers: metrics, health, and a JSON API over the broker's desks.

The API is what the pipeline and the command line use for things Kafka's protocol has no words for:
bindings, named readers, segments, and the gate for staged work. Shapes are in ``docs/http.md``.
"""

from __future__ import annotations

from typing import Any

from cordwood import __version__
from cordwood.broker.broker import Broker
from cordwood.broker.compaction import describe
from cordwood.broker.gate import Delivery, Part
from cordwood.broker.metrics import exposition
from cordwood.config import overrides
from cordwood.errors import RequestError
from cordwood.log.layout import LOCK
from cordwood.log.partition import Partition
from cordwood.meta.bundles import BundleEntry
from cordwood.meta.keys import ReaderPartition
from cordwood.model import TopicPartition
from cordwood.net.http import Answer, Handler, Query

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OK = {"ok": True}


def http_routes(broker: Broker) -> dict[tuple[str, str], Handler]:
    """(method, path) → handler."""
    api = HttpApi(broker)
    return {
        ("GET", "/healthz"): api.healthz,
        ("GET", "/livez"): api.healthz,
        ("GET", "/readyz"): api.readyz,
        ("GET", "/metrics"): api.metrics,
        ("GET", "/api/health"): api.health,
        ("GET", "/api/status"): api.status,
        ("GET", "/api/topics"): api.topics,
        ("POST", "/api/cut"): api.cut,
        ("POST", "/api/reclaim"): api.reclaim,
        ("GET", "/api/pipeline"): api.pipeline,
        ("GET", "/api/readers"): api.readers,
        ("POST", "/api/readers"): api.change_reader,
        ("GET", "/api/routes"): api.routes,
        ("POST", "/api/routes"): api.set_route,
        ("DELETE", "/api/routes"): api.remove_route,
        ("PUT", "/api/staging"): api.upload,
        ("DELETE", "/api/staging"): api.discard,
        ("GET", "/api/deliveries"): api.deliveries,
        ("POST", "/api/deliveries"): api.deliver,
        ("POST", "/api/swaps"): api.swap,
        ("GET", "/api/compaction"): api.compaction,
        ("POST", "/api/compaction"): api.compact,
        ("GET", "/api/archive"): api.archive,
        ("POST", "/api/archive"): api.record_bundles,
        ("GET", "/api/replays"): api.replays,
        ("POST", "/api/replays"): api.record_replay,
    }


class HttpApi:
    """One method a path."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def healthz(self, _: Query) -> Answer:
        """The process answers."""
        return Answer.of({"status": "alive"})

    async def readyz(self, _: Query) -> Answer:
        """Everything can be served; 503 and what cannot otherwise."""
        ready, facts = self._broker.is_ready()
        return Answer.of({"ready": ready, **facts}, 200 if ready else 503)

    async def health(self, _: Query) -> Answer:
        """What ``/readyz`` says, for whoever wants to read it and not only its status."""
        ready, facts = self._broker.is_ready()
        return Answer.of({"ready": ready, **facts})

    async def metrics(self, _: Query) -> Answer:
        """Prometheus text."""
        return Answer(exposition(self._broker), content_type=METRICS_TYPE)

    async def status(self, _: Query) -> Answer:
        """What this broker is."""
        broker = self._broker
        return Answer.of(
            {
                "version": __version__,
                "cluster_id": broker.store.catalog.cluster_id(),
                "data": str(broker.store.data.absolute()),
                "lock_inode": (broker.store.data / LOCK).stat().st_ino,
                "addresses": broker.addresses,
                "topics": len(broker.store.topics),
                "config": overrides(broker.config),
                "ingress_topic": broker.config.ingress_topic,
                "dead_letter_topic": broker.config.dead_letter_topic,
            }
        )

    async def topics(self, query: Query) -> Answer:
        """Every topic, or the one named; partitions with their segments, unless ``?brief=1``."""
        names = (
            [query.params["name"]] if "name" in query.params else sorted(self._broker.topics.all())
        )
        brief = query.params.get("brief") == "1"
        return Answer.of({"topics": [self._topic(name, brief=brief) for name in names]})

    def _topic(self, name: str, *, brief: bool) -> dict[str, Any]:
        topic = self._broker.topics.get(name)
        described = {"name": name, "id": topic.id, "partition_count": topic.partition_count}
        if brief:
            return described
        return {
            **described,
            "config": overrides(topic.config),
            "partitions": [_partition(partition) for partition in topic.online()],
        }

    async def cut(self, query: Query) -> Answer:
        """Seal active segments now."""
        return Answer.of({"sealed": await self._broker.monitor.cut(_text(query.json(), "topic"))})

    async def reclaim(self, query: Query) -> Answer:
        """Drop what may go now; without a topic, everywhere."""
        topic = query.json().get("topic")
        return Answer.of({"dropped": await self._broker.monitor.reclaim(topic)})

    async def pipeline(self, _: Query) -> Answer:
        """The embedded pipeline and its jobs."""
        return Answer.of(self._broker.pipeline.described())

    async def readers(self, query: Query) -> Answer:
        """Registered readers, their cursors, lag and held bytes."""
        return Answer.of({"readers": self._broker.readers.describe(query.params.get("topic"))})

    async def change_reader(self, query: Query) -> Answer:
        """``action``: register (``create`` makes the topic), remove, advance or reset."""
        said, readers = query.json(), self._broker.readers
        action, topic, reader = (_text(said, name) for name in ("action", "topic", "reader"))
        if said.get("create") is True:
            await self._broker.topics.ensure(topic, explicit=True)
        self._broker.topics.get(topic)
        tp = TopicPartition(topic, int(said.get("partition", 0)))
        if action == "register":
            await readers.register(topic, reader)
        elif action == "remove":
            await readers.remove(topic, reader)
        elif action == "advance":
            await readers.advance(tp, reader, _number(said, "offset"))
        elif action == "reset":
            await readers.reset(tp, reader, _number(said, "offset"))
        else:
            raise RequestError(f"action is {action!r}; it takes register, remove, advance or reset")
        return Answer.of(OK)

    async def routes(self, _: Query) -> Answer:
        """Every binding."""
        return Answer.of({"routes": self._broker.routes.list()})

    async def set_route(self, query: Query) -> Answer:
        """Bind ``key`` (``kind`` exact or prefix) to ``topic``."""
        said = query.json()
        await self._broker.routes.set(*(_text(said, name) for name in ("kind", "key", "topic")))
        return Answer.of(OK)

    async def remove_route(self, query: Query) -> Answer:
        """Take the binding of ``?kind=&key=`` away."""
        said = dict(query.params)
        await self._broker.routes.remove(_text(said, "kind"), _text(said, "key"))
        return Answer.of(OK)

    async def upload(self, query: Query) -> Answer:
        """One staged file of a job that cannot reach the data directory: ``?job=&name=``."""
        said = dict(query.params)
        await self._broker.gate.upload(_text(said, "job"), _text(said, "name"), query.body)
        return Answer.of(OK)

    async def discard(self, query: Query) -> Answer:
        """Forget what ``?job=`` staged, unless a delivery of it is under way."""
        await self._broker.gate.discard(_text(dict(query.params), "job"))
        return Answer.of(OK)

    async def deliveries(self, query: Query) -> Answer:
        """The last batch each query delivered, or that of ``?query=``."""
        sinks = self._broker.store.catalog.sinks
        wanted = [query.params["query"]] if "query" in query.params else sorted(sinks)
        return Answer.of(
            {"deliveries": {name: sinks[name]["batch"] for name in wanted if name in sinks}}
        )

    async def deliver(self, query: Query) -> Answer:
        """Append a query's staged batch, once."""
        delivered = await self._broker.gate.deliver(_delivery(query.json()))
        return Answer.of({"delivered": delivered})

    async def swap(self, query: Query) -> Answer:
        """Let a finished job's segments take the place of those it read."""
        await self._broker.gate.swap(_text(query.json(), "job"))
        return Answer.of(OK)

    async def archive(self, query: Query) -> Answer:
        """The bundles of ``?topic=``, and the cursors an archive keeps with its records."""
        topic = _text(dict(query.params), "topic")
        return Answer.of(self._broker.archive.describe(topic))

    async def record_bundles(self, query: Query) -> Answer:
        """Bundles of ``topic`` and ``partition`` that a job has written and read back."""
        said = query.json()
        tp = TopicPartition(_text(said, "topic"), _number(said, "partition"))
        end = await self._broker.archive.record(tp, [_bundle(each) for each in said["bundles"]])
        return Answer.of({"archived_end": end})

    async def replays(self, _: Query) -> Answer:
        """Every replay of dead letters."""
        return Answer.of({"replays": self._broker.replays.list()})

    async def record_replay(self, query: Query) -> Answer:
        """What replay ``id`` has done so far, as ``record``."""
        said = query.json()
        if not isinstance(said.get("record"), dict):
            raise RequestError("record is missing; it takes an object")
        await self._broker.replays.put(_text(said, "id"), said["record"])
        return Answer.of(OK)

    async def compaction(self, query: Query) -> Answer:
        """Every compacted partition, or those of ``?topic=``: state, plan and the reason."""
        config = self._broker.config
        schedule = {
            "interval_ms": config.compaction_interval_ms,
            "delay_ms": config.compaction_delay_ms,
        }
        if "brief" in query.params:
            return Answer.of({"schedule": schedule})
        looks = self._broker.compaction.look(query.params.get("topic"))
        told = [describe(look) for look in looks]
        return Answer.of({"schedule": schedule, "partitions": told})

    async def compact(self, query: Query) -> Answer:
        """For jobs. ``action``: begin (gives orders), renew, finish, fail or release."""
        said, desk = query.json(), self._broker.compaction
        action = _text(said, "action")
        if action == "begin":
            flags = {name: said.get(name) is True for name in ("demand", "dry")}
            orders = await desk.begin(said.get("topic"), **flags)
            return Answer.of({"orders": orders})
        tp = TopicPartition(_text(said, "topic"), _number(said, "partition"))
        lease = str(said.get("lease", ""))
        if action == "renew":
            desk.renew(tp, lease)
        elif action == "finish":
            jobs, state = said.get("jobs"), said.get("state")
            if not isinstance(jobs, list) or not isinstance(state, dict):
                raise RequestError("finish takes the names of jobs and a state")
            await desk.finish(tp, _text(said, "topic_id"), jobs, state, lease)
        elif action == "fail":
            await desk.fail(tp, _text(said, "error"), lease)
        elif action == "release":
            desk.release(tp, lease)
        else:
            raise RequestError(
                f"action is {action!r}; it takes begin, renew, finish, fail or release"
            )
        return Answer.of(OK)


def _bundle(said: dict[str, Any]) -> BundleEntry:
    return BundleEntry(
        start_offset=_number(said, "start_offset"),
        end_offset=_number(said, "end_offset"),
        name=_text(said, "name"),
        sha256=_text(said, "sha256"),
        link=_text(said, "link"),
        place=_text(said, "place"),
    )


def _partition(partition: Partition) -> dict[str, Any]:
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
            }
            for segment in partition.segments()
        ],
    }


def _delivery(said: dict[str, Any]) -> Delivery:
    try:
        cursors = {_reader(cursor): cursor for cursor in said.get("cursors", [])}
        return Delivery(
            query=_text(said, "query"),
            batch=_number(said, "batch"),
            job=_text(said, "job"),
            parts=[
                Part(_text(part, "topic"), _number(part, "partition"), _text(part, "file"))
                for part in said["parts"]
            ],
            cursors={where: _number(cursor, "offset") for where, cursor in cursors.items()},
            starts={
                where: _number(cursor, "start")
                for where, cursor in cursors.items()
                if "start" in cursor
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"not a delivery: {error!r}") from None


def _reader(said: dict[str, Any]) -> ReaderPartition:
    return ReaderPartition(_text(said, "reader"), _text(said, "topic"), _number(said, "partition"))


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} is missing; it takes a text")
    return value


def _number(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"{name} is missing; it takes a whole number from 0")
    return value
