"""The Kafka handlers on a real store, without sockets: every message goes through the codec."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from cordwood.batch.records import encode_batch
from cordwood.broker.feed import Feed
from cordwood.broker.kafka.caller import Caller
from cordwood.broker.kafka.handlers import Coordinators, kafka_handlers
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.readers import ReaderDesk
from cordwood.broker.topics import TopicDesk
from cordwood.clock import SystemClock
from cordwood.config import BrokerConfig, changed
from cordwood.log.files import Files
from cordwood.log.store import EAGER_MAX, Store
from cordwood.log.writer import Writer
from cordwood.model import Record
from cordwood.wire.kafka.codec import decode, encode
from cordwood.wire.kafka.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from cordwood.wire.kafka.schema import api_of

CALLER = Caller("192.0.2.7:40000", "broker.example", 9092, "tester")
QUICK = {"durability": "os", "group.initial.rebalance.delay.ms": 0}


class KafkaDesks:
    """``async with``: open, wired and running; ``ask`` is what a connection would do."""

    def __init__(self, data, clock=None, files=None, *, eager=EAGER_MAX, **settings) -> None:
        """Settings are the broker's, with underscores; ``eager`` is the store's."""
        self.files = files or Files()
        self._eager = eager
        said = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = changed(BrokerConfig(), {**QUICK, **said, "data": str(data)})
        self.data = data
        self.clock = clock or SystemClock()
        self.addresses = {"http": ["127.0.0.1:1234"], "control": ["127.0.0.1:1", "127.0.0.1:2"]}

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.store = Store.open(self.data, self.config, self.clock, self.files, eager=self._eager)
        self.feed = Feed()
        self.meta_thread = ThreadPoolExecutor(1)

        def on_commit(commit):
            commit.settle()
            self.feed.wake(commit.published)

        self.writer = Writer(
            self.config.durability,
            deliver=on_commit,
            post=loop.call_soon_threadsafe,
        )
        self.topics = TopicDesk(self.config, self.store, self.writer, self.meta_thread)
        self.produce_desk = ProduceDesk(
            self.writer, self.clock, self.config.message_inflated_bytes_max
        )
        self.readers = ReaderDesk(self.store, self.clock, self.meta_thread)
        self.coordinators = Coordinators(
            config=self.config,
            clock=self.clock,
            store=self.store,
            topics=self.topics,
            readers=self.readers,
            produce=self.produce_desk,
            meta_thread=self.meta_thread,
        )
        self.handlers = kafka_handlers(
            self.coordinators,
            config=self.config,
            clock=self.clock,
            store=self.store,
            topics=self.topics,
            produce=self.produce_desk,
            feed=self.feed,
            addresses=lambda: self.addresses,
        )
        self.writer.start()
        self.coordinators.start()
        return self

    async def __aexit__(self, *_):
        await self.coordinators.stop()
        await self.produce_desk.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.writer.close)
        self.meta_thread.shutdown()
        self.topics.opener.close()
        self.store.close()

    @property
    def catalog(self):
        """What is durable."""
        return self.store.catalog

    async def ask(self, request, version=None, caller=CALLER):
        """The reply as a client of that version reads it."""
        api = api_of(type(request))
        version = api.last_version if version is None else version
        sent = decode(api.request, version, b"".join(encode(request, version)))
        reply = await self.handlers[api.name](sent, version, caller)
        return decode(api.response, version, b"".join(encode(reply, version)))

    def begin(self, request, version=None, caller=CALLER):
        """The same, not waited for."""
        return asyncio.ensure_future(self.ask(request, version, caller))

    async def create(self, name, partitions=1, **config):
        """A topic, past the handlers."""
        said = {key.replace("_", "."): value for key, value in config.items()}
        return await self.topics.create(name, partitions, said)

    async def write(self, topic, values, *, partition=0, transactional_id=None, **batch):
        """Produce one batch; its answer."""
        records = [Record(offset, 1, b"k", value) for offset, value in enumerate(values)]
        data = encode_batch(records, is_transactional=transactional_id is not None, **batch)
        topics = [ProduceTopic(topic, [ProducePartition(partition, data)])]
        response = await self.ask(ProduceRequest(transactional_id, -1, 1000, topics))
        return response.topics[0].partitions[0]
