"""The Kafka handlers on a real store, without sockets: every message goes through the codec."""

from __future__ import annotations

import asyncio

from cordwood.batch.header import parse_headers
from cordwood.batch.records import encode_batch
from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.kafka.handlers import Coordinators, kafka_handlers
from cordwood.broker.produce import ProduceService
from cordwood.broker.readers import ReaderService
from cordwood.broker.session import Session
from cordwood.broker.topics import TopicService
from cordwood.clock import SystemClock
from cordwood.config import BrokerConfig, changed
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.store import EAGER_MAX
from cordwood.log.write.writer import Writer
from cordwood.metadata.front import AsyncMetadata
from cordwood.model import Record
from cordwood.protocol.kafka.codec import decode, encode
from cordwood.protocol.kafka.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from cordwood.protocol.kafka.schema import api_of
from cordwood.server.embedded import open_embedded_store

SESSION = Session(
    listener="kafka",
    peer="192.0.2.7:40000",
    client_id="tester",
    host="broker.example",
    port=9092,
)
NEWEST_BY_NAME = {  # later versions name topics by id only
    "Produce": 12,
    "Fetch": 12,
    "OffsetCommit": 9,
    "OffsetFetch": 9,
}
QUICK = {"durability": "os", "group.initial.rebalance.delay.ms": 0}


class KafkaServices:
    """``async with`` opens, wires and starts the services; ``ask`` does what a connection does."""

    def __init__(self, data, clock=None, files=None, *, eager=EAGER_MAX, **settings) -> None:
        """Settings are broker settings with underscores; ``eager`` is passed to the store."""
        self.files = files or Files()
        self._eager = eager
        options = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = changed(BrokerConfig(), {**QUICK, **options, "data": str(data)})
        self.data = data
        self.clock = clock or SystemClock()
        self.addresses = {"http": ["127.0.0.1:1234"], "control": ["127.0.0.1:1", "127.0.0.1:2"]}

    async def __aenter__(self):
        self.store = open_embedded_store(
            self.data, self.config, self.clock, self.files, eager=self._eager
        )
        self.notifier = AppendNotifier()
        self.metadata = AsyncMetadata(self.store.metadata)
        self.settings = DynamicSettings(self.config, self.metadata)
        self.writer = Writer(self.config.durability, on_commit=self.notifier.wake)
        self.cluster = ClusterView(self.store.metadata.cluster.cluster_id())
        self.topics = TopicService(
            self.settings.current, self.store, self.cluster, self.writer, self.metadata
        )
        self.settings.check_with(self.topics.check_reconfigure)
        self.settings.subscribe(self.topics.reconfigure)
        self.produce_service = ProduceService(
            self.writer, self.clock, self.config.message_inflated_bytes_max
        )
        self.readers = ReaderService(self.store, self.clock, self.metadata)
        self.coordinators = Coordinators(
            config=self.config,
            clock=self.clock,
            topics=self.topics,
            readers=self.readers,
            produce=self.produce_service,
            metadata=self.metadata,
        )
        self.handlers = kafka_handlers(
            self.coordinators,
            settings=self.settings,
            clock=self.clock,
            store=self.store,
            cluster=self.cluster,
            topics=self.topics,
            produce=self.produce_service,
            metadata=self.metadata,
            notifier=self.notifier,
            addresses=lambda: self.addresses,
        )
        self.writer.start(asyncio.get_running_loop())
        self.coordinators.start()
        return self

    async def __aexit__(self, *_):
        await self.coordinators.stop()
        await self.produce_service.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.writer.close)
        self.metadata.close()
        self.topics.opener.close()
        self.store.close()

    async def ask(self, request, version=None, session=SESSION):
        """Send a request and return the reply as a client of that version decodes it."""
        api = api_of(type(request))
        if version is None:
            version = NEWEST_BY_NAME.get(api.name, api.last_version)
        sent = decode(api.request, version, b"".join(encode(request, version)))
        reply = await self.handlers[api.name](sent, version, session)
        return decode(api.response, version, b"".join(encode(reply, version)))

    def begin(self, request, version=None, session=SESSION):
        """Send a request without waiting for the reply."""
        return asyncio.ensure_future(self.ask(request, version, session))

    async def create(self, name, partitions=1, **config):
        """Create a topic without going through the handlers."""
        options = {key.replace("_", "."): value for key, value in config.items()}
        return await self.topics.create(name, partitions, options)

    async def append_transactional(self, partition, values, **batch):
        """Append a batch of a transaction past the coordinator, as a hanging transaction has."""
        records = [Record(offset, 1, b"k", value) for offset, value in enumerate(values)]
        data = bytearray(encode_batch(records, is_transactional=True, **batch))
        return await self.produce_service.submit(partition, data, parse_headers(data))

    async def write(self, topic, values, *, partition=0, transactional_id=None, **batch):
        """Produce one batch and return its answer."""
        records = [Record(offset, 1, b"k", value) for offset, value in enumerate(values)]
        data = encode_batch(records, is_transactional=transactional_id is not None, **batch)
        topics = [ProduceTopic(topic, partitions=[ProducePartition(partition, data)])]
        response = await self.ask(ProduceRequest(transactional_id, -1, 1000, topics))
        return response.topics[0].partitions[0]
