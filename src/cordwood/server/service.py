"""A broker with its listeners: what ``cordwood serve`` runs and what tests embed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cordwood.address import parse_address
from cordwood.broker.broker import Broker
from cordwood.client.broker_listeners import parse_http
from cordwood.clock import Clock, SystemClock
from cordwood.config import BrokerConfig
from cordwood.decide.web import AllowedHosts
from cordwood.log.files.disk import Files
from cordwood.server.control_listener import ControlListener
from cordwood.server.embedded import open_embedded_store
from cordwood.server.garbage_collection import FullCollections
from cordwood.server.http_api import ROUTES, HttpApi
from cordwood.server.http_listener import HttpListener
from cordwood.server.http_routes import Router
from cordwood.server.ingress_listener import IngressListener
from cordwood.server.kafka_listener import KafkaListener
from cordwood.server.listeners import Server
from cordwood.server.pipeline_supervisor import Supervisor, pipeline_endpoint
from cordwood.server.process_memory import keep_freed_memory
from cordwood.server.service_manager import ServiceManager

logger = logging.getLogger("cordwood.server")

NOTICE_S = 5.0  # a topic that was just created is mentioned by then


class Service:
    """One broker and its listeners, on the running event loop."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock | None = None, files: Files | None = None
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._files = files or Files()
        self.server = Server(config, self._clock)
        self.broker: Broker | None = None
        self.http: HttpListener | None = None

    @property
    def addresses(self) -> dict[str, list[str]]:
        """The addresses of each enabled listener, by listener name."""
        return self.server.addresses

    async def start(self) -> None:
        """Open the data directory, then the listeners; on failure nothing is left open."""
        data = Path(self._config.data)
        store = open_embedded_store(data, self._config, self._clock, self._files)
        self.broker = Broker(self._config, self._clock, store)
        try:
            await self.broker.start()
            await self._open_listeners(self.broker)
        except BaseException:
            await self.stop()
            raise

    async def _open_listeners(self, broker: Broker) -> None:
        config, server = self._config, self.server
        broker.listeners = server.listeners
        broker.addresses = server.addresses
        ingress = IngressListener(server.listener("ingress"), broker.ingress, config.line_bytes_max)
        control = ControlListener(server.listener("control"), broker, config.line_bytes_max)
        kafka = KafkaListener(server.listener("kafka", serves_half_closed=False), broker)
        hosts = AllowedHosts(broker_names(config))
        self.http = HttpListener(
            server.listener("http"), Router(ROUTES, partial(HttpApi, broker)), hosts
        )
        broker.settings.subscribe(server.reconfigure, kafka.reconfigure)
        server.reconfigure(broker.config)
        for factory in (kafka, ingress, control, self.http):
            name = factory.listener.name
            await server.listen(name, getattr(config, name), factory, tls=False)
            await server.listen(name, getattr(config, f"{name}_tls"), factory, tls=True)

    async def stop(self) -> None:
        """Close the listeners, write what is queued, close the log."""
        if self.broker:
            self.broker.drain()
        await self.server.stop()
        if self.broker:
            await self.broker.stop()


def broker_names(config: BrokerConfig) -> Iterator[str]:
    """The host names under which HTTP clients may address this broker."""
    yield from config.http_allowed_hosts.split(",")
    for address in f"{config.http},{config.http_tls},{config.advertised_kafka}".split(","):
        if address.strip() not in {"", "off"}:
            yield parse_address(address, setting="http").host
    if config.advertised_http:
        advertised = parse_http(config.advertised_http, setting="advertised.http")
        yield parse_address(advertised.address).host


def run_service(config: BrokerConfig, on_ready: Callable[[dict[str, list[str]]], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    os.umask(0o077 if config.file_mode == "owner" else 0o027)  # for files that libraries create
    keep_freed_memory()
    _raise_file_limit()
    threading.excepthook = _die
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(config, on_ready))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the event loop that brokers run on."""
    try:
        import uvloop
    except ImportError:  # not on this platform; the standard loop is slower
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_file_limit() -> None:
    """Raise the limit to its maximum: each connection and each segment needs a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may refuse; the soft limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _die(failure: threading.ExceptHookArgs) -> None:
    """Exit when one of our threads dies: a broker without it would acknowledge nothing.

    What was acknowledged is durable, and the process supervisor restarts the broker.
    """
    name = failure.thread.name if failure.thread else "unknown"
    logger.critical("thread.died name=%s", name, exc_info=failure.exc_value)
    logging.shutdown()
    os._exit(1)


def _start_pipeline(config: BrokerConfig, service: Service) -> Supervisor | None:
    """Start the pipeline after READY: a broker never waits for Spark."""
    if config.pipeline == "off" or service.broker is None:
        return None
    endpoint = pipeline_endpoint(config, service.addresses)
    supervisor = Supervisor.embedded(service.broker.pipeline, endpoint, Path(config.data))
    if supervisor is not None:
        supervisor.start()
    return supervisor


async def warn_about_compaction(broker: Broker, *, every_s: float = NOTICE_S) -> None:
    """Log once that compacted topics are not compacted, as soon as there is such a topic."""
    while True:
        reason = broker.pipeline.why_not_compacting()
        if reason and any(broker.compaction.compacted_topics()):
            logger.warning("compaction.missing %s", reason)
            return
        await asyncio.sleep(every_s)


def _freeze_young() -> None:
    """Exempt the objects of newly opened partitions from full collections, which would stall us."""
    gc.collect(1)
    gc.freeze()


async def _serve(config: BrokerConfig, on_ready: Callable[[dict[str, list[str]]], None]) -> None:
    service = Service(config)
    manager = ServiceManager.of(os.environ)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await service.start()
    gc.freeze()  # start-up objects live on; later collections need not walk them
    if service.broker is not None:
        service.broker.topics.opener.on_batch = _freeze_young
        service.broker.background.start("garbage-collection", FullCollections().run())
        service.broker.background.start("watchdog", manager.keep_alive())
    on_ready(service.addresses)
    manager.ready(service.addresses)
    pipeline = _start_pipeline(config, service)
    notice = asyncio.create_task(warn_about_compaction(service.broker)) if service.broker else None
    await stop.wait()
    if notice is not None:
        notice.cancel()  # a pipeline that stops with the broker is no news
    logger.info("broker.stopping")
    manager.stopping()
    await asyncio.gather(*([pipeline.stop()] if pipeline else []), service.stop())
    logger.info("broker.stopped")
