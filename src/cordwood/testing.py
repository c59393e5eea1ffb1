"""A real broker for your tests: in this process, on free ports, started in under a second.

    with cordwood.testing.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})

The broker runs on its own thread and stores data in a temporary directory unless you name one. With
``stop`` and ``start``, a test can check how its code handles a broker that is down for a while.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cordwood.clock import Clock
from cordwood.config import BrokerConfig, changed
from cordwood.errors import ConfigError
from cordwood.log.files.disk import Files, OpenFile
from cordwood.log.files.modes import Modes
from cordwood.server.service import Service, new_event_loop

__all__ = ["Broker", "Clock", "Files", "Modes", "OpenFile"]

T = TypeVar("T")

ANY_PORT = "127.0.0.1:0"


class Broker:
    """A broker on free ports; takes the settings of ``cordwood serve``, with underscores."""

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        **settings: object,
    ) -> None:
        """Pass ``data`` to keep the data; ``durability="os"`` is faster but weaker."""
        self._keep = data is not None
        self.data = Path(data or tempfile.mkdtemp(prefix="cordwood-"))
        listeners = ("kafka", "ingress", "control", "http")
        options: dict[str, object] = dict.fromkeys(listeners, ANY_PORT)
        options |= {name.replace("_", "."): value for name, value in settings.items()}
        self._config = changed(BrokerConfig(), {**options, "data": str(self.data)})
        self._clock = clock
        self._files = files
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        """Internal: the running service, for cordwood's own tests."""
        if self._service is None:
            raise ConfigError("the broker is not running; use it in a with block, or start() it")
        return self._service

    def address(self, listener: str) -> str:
        """The address of a listener, as HOST:PORT."""
        return self.service.addresses[listener][0]

    @property
    def kafka(self) -> str:
        """The bootstrap server for Kafka clients."""
        return self.address("kafka")

    @property
    def ingress(self) -> str:
        """The address to which producers push lines."""
        return self.address("ingress")

    @property
    def control(self) -> str:
        """The address for commands of the line protocol."""
        return self.address("control")

    @property
    def http(self) -> str:
        """The address of the HTTP API, metrics and health checks."""
        return self.address("http")

    def start(self) -> None:
        """Start, and return when every listener is open; raises any error of the start."""
        assert self._thread is None, "already running"
        self._loop = new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cordwood-broker", daemon=True
        )
        self._thread.start()
        self._service = Service(self._config, clock=self._clock, files=self._files)
        try:
            self.run(self._service.start)
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Drain and stop the broker; keeps the data."""
        if self._thread is None:
            return
        self.run(self.service.stop)
        self._end_loop()

    def restart(self) -> None:
        """Stop, and start on the same data; the ports change."""
        self.stop()
        self.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the broker's event loop and wait for its result."""
        assert self._loop is not None, "not running"
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = self._service = None

    def __enter__(self) -> Self:
        """Start the broker."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Stop the broker and delete its temporary directory."""
        self.stop()
        if not self._keep:
            shutil.rmtree(self.data, ignore_errors=True)
