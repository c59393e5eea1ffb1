"""The broker: the log, its writer and the desks, wired together. It knows nothing of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from cordwood.broker.archive import ArchiveDesk
from cordwood.broker.commands import CommandDesk
from cordwood.broker.compaction import CompactionDesk
from cordwood.broker.feed import Feed
from cordwood.broker.gate import Gate
from cordwood.broker.ingress import IngressDesk
from cordwood.broker.kafka.desk import KafkaDesk
from cordwood.broker.kafka.handlers import Coordinators, kafka_handlers
from cordwood.broker.metrics import snapshot
from cordwood.broker.monitor import Monitor
from cordwood.broker.pipeline import PipelineFacts
from cordwood.broker.produce import ProduceDesk
from cordwood.broker.readers import ReaderDesk
from cordwood.broker.replays import ReplayDesk
from cordwood.broker.routes import RouteDesk
from cordwood.broker.topics import TopicDesk
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.log.commit import Commit
from cordwood.log.files import Files
from cordwood.log.store import Store
from cordwood.log.writer import Writer

logger = logging.getLogger("cordwood.broker")


class DoorFacts(Protocol):
    """What the metrics read of a door."""

    accepted: int
    refused: int
    timed_out: int

    @property
    def links(self) -> set[Any]:
        """Its connections."""
        ...


class Broker:
    """Everything behind the doors."""

    def __init__(self, config: BrokerConfig, clock: Clock, store: Store) -> None:
        self.config = config
        self.clock = clock
        self.store = store
        self.doors: Mapping[str, DoorFacts] = {}
        self.addresses: Mapping[str, list[str]] = {}
        self.pipeline = PipelineFacts()
        self.writer = Writer(
            config.durability,
            enough_records=config.ingress_buffer,
            deliver=self._on_commit,
            post=self._post,
            has_space=store.has_space,
            soon=self._soon,
        )
        self.feed = Feed()
        self._meta_thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-meta")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="cordwood-background")
        self._gate_thread = ThreadPoolExecutor(1, thread_name_prefix="cordwood-gate")
        self.topics = TopicDesk(config, store, self.writer, self._meta_thread)
        self.produce = ProduceDesk(self.writer, clock)
        self.readers = ReaderDesk(store, clock, self._meta_thread)
        self.ingress = IngressDesk(config, clock, self.topics, self.produce, self.writer)
        self.monitor = Monitor(config, store, self.topics, clock, self._background)
        self.commands = CommandDesk(
            config=config,
            topics=self.topics,
            produce=self.produce,
            readers=self.readers,
            monitor=self.monitor,
            feed=self.feed,
            status=lambda: snapshot(self),
        )
        self.routes = RouteDesk(store.catalog, self._meta_thread)
        self.archive = ArchiveDesk(store, self._meta_thread)
        self.replays = ReplayDesk(store.catalog, self._meta_thread)
        self.gate = Gate(
            store=store,
            topics=self.topics,
            produce=self.produce,
            clock=clock,
            meta_thread=self._meta_thread,
            verifying=self._background,
            background=self._gate_thread,
            is_synced=config.durability == "fsync",
        )
        self.compaction = CompactionDesk(store, self.topics, self.gate, clock, self._meta_thread)
        self._coordinators = Coordinators(
            config=config,
            clock=clock,
            store=store,
            topics=self.topics,
            readers=self.readers,
            produce=self.produce,
            meta_thread=self._meta_thread,
        )
        handlers = kafka_handlers(
            self._coordinators,
            config=config,
            clock=clock,
            store=store,
            topics=self.topics,
            produce=self.produce,
            feed=self.feed,
            addresses=lambda: self.addresses,
        )
        self.kafka = KafkaDesk(self.writer, handlers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def open(cls, config: BrokerConfig, clock: Clock, files: Files) -> Broker:
        """Open the data directory and recover it; raises ``ConfigError``s that name the remedy."""
        return cls(config, clock, Store.open(Path(config.data), config, clock, files))

    async def start(self) -> None:
        """Start the writer and what runs beside it."""
        self._loop = asyncio.get_running_loop()
        self.writer.start()
        await self.gate.recover()
        self._coordinators.start()
        self._tasks.append(asyncio.create_task(self.monitor.run()))
        self._tasks.append(asyncio.create_task(self.gate.keep_swept()))

    def _soon(self, act: Callable[[], None]) -> None:
        """On the loop, where every append is submitted: after the sockets that are ready now."""
        assert self._loop is not None
        self._loop.call_soon(act)

    def _post(self, tell: Callable[[], None]) -> None:
        """On the writer thread: one hop to the loop for a whole commit."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(tell)

    def _on_commit(self, commit: Commit) -> None:
        commit.settle()
        self.feed.wake(commit.published)
        self.ingress.on_commit()
        self.kafka.on_commit()

    def is_ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether everything can be served, and what cannot."""
        offline = {str(tp): str(error) for tp, error in self.store.offline.items()}
        disk_full = self.writer.stats.disk_full
        quarantined = {str(tp): error for tp, error in self.compaction.quarantined().items()}
        facts = {
            "disk_full": disk_full,
            "offline_partitions": offline,
            "compaction_quarantined": quarantined,  # served all the same
            "pipeline": self.pipeline.state.value,  # told; the broker is ready without it
        }
        return not offline and not disk_full, facts

    def drain(self) -> None:
        """Before the doors wait for requests under way: let go of those that wait for others."""
        self._coordinators.drain()
        self.feed.drain()

    async def stop(self) -> None:
        """Write what waits, then close the log."""
        await self._coordinators.stop()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.gate.stop()
        await self.ingress.stop()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.writer.close)
        await asyncio.sleep(0)  # let the last commit's answers out
        self._meta_thread.shutdown()
        self._background.shutdown()
        self._gate_thread.shutdown()
        self.store.close()
