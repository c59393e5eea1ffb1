"""The broker: wires the log, its writer and the services together. Knows nothing of sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.background import BackgroundTasks
from cordwood.broker.commands import CommandService
from cordwood.broker.directory_watch import DirectoryWatch
from cordwood.broker.exposition import snapshot
from cordwood.broker.health import is_served, readiness
from cordwood.broker.ingest.service import IngressService
from cordwood.broker.jobs.archive import ArchiveService
from cordwood.broker.jobs.compaction import CompactionService
from cordwood.broker.jobs.delivery import DeliveryService
from cordwood.broker.jobs.pipeline_status import PipelineStatus
from cordwood.broker.jobs.replays import ReplayService
from cordwood.broker.jobs.routes import RouteService
from cordwood.broker.jobs.staged_appends import StagedAppender
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
from cordwood.log.files.disk import Files
from cordwood.log.lifecycle.store import Store
from cordwood.log.staging.area import StagingArea
from cordwood.log.write.commit import Commit
from cordwood.log.write.writer import Writer

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

    def __init__(self, config: BrokerConfig, clock: Clock, store: Store) -> None:
        self.config = config
        self.clock = clock
        self.store = store
        self.listeners: Mapping[str, ListenerStats] = {}
        self.addresses: Mapping[str, list[str]] = {}
        self.pipeline = PipelineStatus()
        self.writer = Writer(
            config.durability,
            enough_records=config.ingress_buffer,
            deliver=self._on_commit,
            post=self._post,
            has_space=store.has_space,
            soon=self._soon,
            note=store.recovery_points.note,
        )
        self.notifier = AppendNotifier()
        self._meta_thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-meta")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="cordwood-background")
        self._delivery_thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-delivery")
        self.topics = TopicService(config, store, self.writer, self._meta_thread)
        self.produce = ProduceService(self.writer, clock, config.message_inflated_bytes_max)
        self.readers = ReaderService(store, clock, self._meta_thread)
        self.ingress = IngressService(config, clock, self.topics, self.produce, self.writer)
        self.directory = DirectoryWatch(store, self.topics)
        self.archive = ArchiveService(store, self._meta_thread)
        self.monitor = Monitor(
            config, store, self.topics, clock, self._background, archive=self.archive
        )
        self.scrub = Scrubber(config, store, clock)
        self.commands = CommandService(
            config=config,
            topics=self.topics,
            produce=self.produce,
            readers=self.readers,
            monitor=self.monitor,
            notifier=self.notifier,
            status=lambda: snapshot(self),
        )
        self.routes = RouteService(store.catalog, self._meta_thread)
        self.replays = ReplayService(store.catalog, self._meta_thread)
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
            meta_thread=self._meta_thread,
            verifying=self._background,
            background=self._delivery_thread,
            retention_ms=config.delivery_retention_ms,
        )
        self.compaction = CompactionService(
            store, self.topics, self.deliveries, clock, self._meta_thread
        )
        self._coordinators = Coordinators(
            config=config,
            clock=clock,
            store=store,
            topics=self.topics,
            readers=self.readers,
            produce=self.produce,
            meta_thread=self._meta_thread,
        )
        self.outgoing = UnsentReplies()
        handlers = kafka_handlers(
            self._coordinators,
            config=config,
            clock=clock,
            store=store,
            topics=self.topics,
            produce=self.produce,
            notifier=self.notifier,
            addresses=lambda: self.addresses,
            outgoing=self.outgoing,
        )
        self.kafka = RequestDispatcher(
            self.writer, self.produce, handlers, config.request_elements_max
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self.background = BackgroundTasks()

    @classmethod
    def open(cls, config: BrokerConfig, clock: Clock, files: Files) -> Broker:
        """Open the data directory and recover it; raises ``ConfigError``s that name the remedy."""
        return cls(config, clock, Store.open(Path(config.data), config, clock, files))

    async def start(self) -> None:
        """Start the writer, finish recorded deliveries and start the background tasks."""
        self._loop = asyncio.get_running_loop()
        self.writer.start()
        await self.deliveries.recover()
        self._coordinators.start()
        self.background.start("directory-watch", self.directory.run())
        self.background.start("partition-opener", self.topics.opener.run())
        self.background.start("monitor", self.monitor.run())
        self.background.start("archive-reclaim", self.monitor.run_archived())
        self.background.start("scrub", self.scrub.run())
        self.background.start("staging-sweep", self.deliveries.keep_swept())

    def _soon(self, act: Callable[[], None]) -> None:
        """Run ``act`` on the event loop, after the sockets that are ready now.

        Called on the loop, where every append is submitted.
        """
        assert self._loop is not None
        self._loop.call_soon(act)

    def _post(self, tell: Callable[[], None]) -> None:
        """Run ``tell`` on the event loop; called on the writer thread, once for a whole commit."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(tell)

    def _on_commit(self, commit: Commit) -> None:
        commit.settle()
        self.notifier.wake(commit.published)
        self.ingress.on_commit()
        self.kafka.on_commit()

    def is_ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether everything can be served, and the facts behind that."""
        facts = readiness(self)
        return is_served(facts), facts

    def drain(self) -> None:
        """End requests that wait for events, before the listeners wait for open requests."""
        self._coordinators.drain()
        self.notifier.drain()

    async def stop(self) -> None:
        """Write pending appends, then close the log."""
        await self._coordinators.stop()
        self.scrub.stop()
        await self.background.stop()
        await self.deliveries.stop()
        await self.ingress.stop()
        await self.produce.stop()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.topics.opener.close)
        await loop.run_in_executor(None, self.writer.close)
        self.writer.tell_rest()
        await asyncio.sleep(0)  # let the last commit's replies go out
        self._meta_thread.shutdown()
        self._background.shutdown()
        self._delivery_thread.shutdown()
        self.archive.close()
        self.store.close()
