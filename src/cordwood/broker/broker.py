"""The broker: wires the log, its writer and the services together. Knows nothing of sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.background import BackgroundTasks
from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.commands import CommandService
from cordwood.broker.compression import Compressor
from cordwood.broker.directory_watch import DirectoryWatch
from cordwood.broker.drain import DrainService
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.exposition import snapshot
from cordwood.broker.health import health_of
from cordwood.broker.ingest.service import IngressService
from cordwood.broker.jobs.archive import ArchiveService
from cordwood.broker.jobs.compaction import CompactionService
from cordwood.broker.jobs.delivery import DeliveryService
from cordwood.broker.jobs.pipeline_status import PipelineStatus
from cordwood.broker.jobs.replays import ReplayService
from cordwood.broker.jobs.routes import RouteService
from cordwood.broker.jobs.staged_appends import StagedAppender
from cordwood.broker.jobs.swaps import SwapService
from cordwood.broker.kafka.dispatcher import RequestDispatcher
from cordwood.broker.kafka.handlers import Coordinators, kafka_handlers
from cordwood.broker.kafka.unsent_replies import UnsentReplies
from cordwood.broker.monitor import Monitor
from cordwood.broker.produce import ProduceService
from cordwood.broker.readers import ReaderService
from cordwood.broker.scrub import Scrubber
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.log.lifecycle.store import Store
from cordwood.log.staging.area import StagingArea
from cordwood.log.write.partition import Partition
from cordwood.log.write.writer import Writer
from cordwood.metadata.front import AsyncMetadata
from cordwood.protocol.api.status import Health

logger = logging.getLogger("cordwood.broker")


class ListenerStats(Protocol):
    """The counters of a listener that the metrics read."""

    accepted: int
    refused: int
    timed_out: int

    @property
    def foreign(self) -> Mapping[str, int]:
        """Count of misdirected peers (wrong protocol, host or page), by error."""
        ...

    @property
    def connections(self) -> set[Any]:
        """The open connections."""
        ...


class Broker:
    """Everything behind the listeners."""

    def __init__(self, started_with: BrokerConfig, clock: Clock, store: Store) -> None:
        self.metadata = AsyncMetadata(store.metadata)
        self.settings = DynamicSettings(started_with, self.metadata)
        config = self.settings.current
        self.clock = clock
        self.store = store
        self.listeners: Mapping[str, ListenerStats] = {}
        self.addresses: Mapping[str, list[str]] = {}
        self.pipeline = PipelineStatus()
        self.writer = Writer(
            config.durability,
            enough_records=config.ingress_buffer,
            on_commit=self._on_commit,
            has_space=store.has_space,
            record_ends=store.partition_directories.recovery_points.record,
        )
        self.cluster = ClusterView(store.metadata.cluster.cluster_id())
        self.notifier = AppendNotifier()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="cordwood-background")
        self._delivery_thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-delivery")
        self.topics = TopicService(config, store, self.cluster, self.writer, self.metadata)
        self.produce = ProduceService(self.writer, clock, config.message_inflated_bytes_max)
        self.readers = ReaderService(store, clock, self.metadata)
        self.ingress = IngressService(config, clock, self.topics, self.produce, self.writer)
        self.directory = DirectoryWatch(store, self.topics)
        self.archive = ArchiveService(store, self.metadata)
        self.monitor = Monitor(
            config, store, self.topics, clock, self._background, archive=self.archive
        )
        self.scrub = Scrubber(config, store, clock)
        self.routes = RouteService(self.metadata)
        self.replays = ReplayService(self.metadata)
        appender = StagedAppender(
            staging=StagingArea(store.data),
            topics=self.topics,
            produce=self.produce,
            clock=clock,
            background=self._delivery_thread,
            dead_letter_topic=config.dead_letter_topic,
            is_synced=config.durability == "fsync",
        )
        self.deliveries = DeliveryService(
            store=store,
            topics=self.topics,
            appender=appender,
            clock=clock,
            metadata=self.metadata,
            background=self._delivery_thread,
            retention_ms=config.delivery_retention_ms,
        )
        self.drains = DrainService(
            config,
            topics=self.topics,
            readers=self.readers,
            deliveries=self.deliveries,
            monitor=self.monitor,
            metadata=self.metadata,
        )
        self.commands = CommandService(
            config=config,
            topics=self.topics,
            produce=self.produce,
            readers=self.readers,
            monitor=self.monitor,
            notifier=self.notifier,
            status=lambda: snapshot(self),
            drain=self.drains.drain,
        )
        swaps = SwapService(store, self.topics, self._background)
        self.compaction = CompactionService(store, self.topics, swaps, clock, self.metadata)
        self.compression = Compressor(
            config,
            store,
            clock,
            topics=self.topics,
            swaps=swaps,
            compaction=self.compaction,
            on_damage=self.scrub.scrub_soon,
        )
        self._coordinators = Coordinators(
            config=config,
            clock=clock,
            topics=self.topics,
            readers=self.readers,
            produce=self.produce,
            metadata=self.metadata,
        )
        self.outgoing = UnsentReplies()
        handlers = kafka_handlers(
            self._coordinators,
            settings=self.settings,
            clock=clock,
            store=store,
            cluster=self.cluster,
            topics=self.topics,
            produce=self.produce,
            metadata=self.metadata,
            notifier=self.notifier,
            addresses=lambda: self.addresses,
            outgoing=self.outgoing,
        )
        self.kafka = RequestDispatcher(
            self.writer, self.produce, handlers, config.request_elements_max
        )
        self.background = BackgroundTasks()
        self.settings.check_with(self.topics.check_reconfigure)
        self.settings.subscribe(
            self._reconfigure,
            self.topics.reconfigure,
            self.monitor.reconfigure,
            self.scrub.reconfigure,
            self.compression.reconfigure,
            self._coordinators.reconfigure,
        )

    @property
    def config(self) -> BrokerConfig:
        """Return the settings in effect."""
        return self.settings.current

    def _reconfigure(self, config: BrokerConfig) -> None:
        self.produce.inflated_bytes_max = config.message_inflated_bytes_max
        self.deliveries.retention_ms = config.delivery_retention_ms
        self.kafka.elements_max = config.request_elements_max

    async def start(self) -> None:
        """Start the writer, finish recorded deliveries and start the background tasks."""
        self.topics.check_defaults()
        self.writer.start(asyncio.get_running_loop())
        await self.deliveries.recover()
        self._coordinators.start()
        self.background.start("directory-watch", self.directory.run())
        self.background.start("partition-opener", self.topics.opener.run())
        self.background.start("monitor", self.monitor.run())
        self.background.start("archive-reclaim", self.monitor.run_archived())
        self.background.start("scrub", self.scrub.run())
        self.background.start("compression", self.compression.run())
        self.background.start("staging-sweep", self.deliveries.keep_swept())

    def _on_commit(self, published: Iterable[Partition]) -> None:
        """Wake readers of new records, and submitters that wait for capacity."""
        self.notifier.wake(published)
        self.ingress.on_commit()
        self.kafka.on_commit()

    def health(self) -> Health:
        """Return whether everything can be served, and what cannot."""
        return health_of(self)

    def drain(self) -> None:
        """End requests that wait for events, before the listeners wait for open requests."""
        self._coordinators.drain()
        self.notifier.drain()

    async def stop(self) -> None:
        """Write pending appends, then close the log."""
        await self._coordinators.stop()
        self.scrub.stop()
        self.compression.stop()
        await self.background.stop()
        await self.deliveries.stop()
        await self.ingress.stop()
        await self.produce.stop()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.topics.opener.close)
        await loop.run_in_executor(None, self.writer.close)
        self.writer.reply_all()
        await asyncio.sleep(0)  # let the last commit's replies go out
        self.metadata.close()
        self._background.shutdown()
        self._delivery_thread.shutdown()
        self.archive.close()
        self.store.close()
