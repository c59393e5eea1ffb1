"""Opens the configured listeners, enforces their limits, and closes them in order.

A listener has a name, its server sockets (plain and TLS) and a protocol factory. All of its
connections are in ``Listener.connections``, so connection limits, idle time-outs and draining on
stop are handled in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from cordwood.address import Address, parse_address
from cordwood.broker.session import Session
from cordwood.clock import Clock
from cordwood.config import KEEP_ALL, BrokerConfig
from cordwood.decide.descriptors import RESERVED
from cordwood.errors import ConfigError, CordwoodError
from cordwood.log.files.file_cache import share_descriptors

logger = logging.getLogger("cordwood.server")

SWEEP_S = 1.0  # how often idle connections are looked for
CLOSE_S = 1.0  # how long a stop waits for peers to receive the last bytes
KEEPALIVE_S = 60  # TCP keepalive probes a peer after this much silence
REFUSALS_LOGGED_S = 10.0  # refusals are logged at most this often, not one by one
TCP_CLOSE, TCP_CLOSE_WAIT = 7, 8  # reset by the peer; closed by the peer


@dataclass(slots=True, eq=False)
class Connection:
    """A listener's state of one connection."""

    transport: asyncio.Transport
    peer: str
    active_at: float
    is_busy: Callable[[], bool] = lambda: False  # in a request: not idle, drained on stop
    quiesce: Callable[[], None] = lambda: None  # read no more: the broker is stopping
    is_subscriber: bool = False  # it waits for what we send, and is never idle
    is_paused: bool = False  # its socket is not read, so a close by the peer goes unnoticed
    writable: asyncio.Event = field(default_factory=asyncio.Event)

    def pause(self) -> None:
        """Stop reading for now; no effect on a connection that is closing."""
        self.is_paused = True
        if not self.transport.is_closing():
            with contextlib.suppress(RuntimeError):  # it closed just now
                self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.is_paused = False
        if not self.transport.is_closing():
            with contextlib.suppress(RuntimeError):
                self.transport.resume_reading()

    def abort(self) -> None:
        """Close immediately, without flushing."""
        self.transport.abort()


class ListenerProtocol(asyncio.BaseProtocol):
    """The asyncio callbacks that the protocols of several listeners share."""

    _connection: Connection | None = None

    def pause_writing(self) -> None:
        """The peer reads slowly: stop writing."""
        assert self._connection
        self._connection.writable.clear()

    def resume_writing(self) -> None:
        """The peer caught up: continue writing."""
        assert self._connection
        self._connection.writable.set()

    def _stays_open(self) -> bool:
        """Return whether a peer that sends no more may still read; over TLS it cannot."""
        connection = self._connection
        return connection is not None and not connection.transport.get_extra_info("sslcontext")


@dataclass(slots=True, eq=False)
class OpenConnections:
    """Open and allowed connections over all listeners; the log needs file descriptors too."""

    limit: int
    count: int = 0


@dataclass(slots=True, eq=False)
class Listener:
    """The connections of one protocol, over all of its sockets."""

    name: str
    clock: Clock
    connections_max: int
    idle_timeout_s: float
    total: OpenConnections
    serves_half_closed: bool = True  # a peer that has shut down its sending side may still read
    connections: set[Connection] = field(default_factory=set)
    accepted: int = 0
    refused: int = 0
    timed_out: int = 0
    foreign: Counter[str] = field(default_factory=Counter)  # wrong protocol or origin, by error
    logged_at: dict[str, float] = field(default_factory=dict)  # the last refusal, by event

    def admit(self, transport: asyncio.BaseTransport) -> Connection | None:
        """Register a new connection; at a limit, close it and return None."""
        stream = cast("asyncio.Transport", transport)  # uvloop's transport is no subclass
        if obstacle := self._obstacle(stream):
            self._refuse(stream, obstacle)
            return None
        self.accepted += 1
        _keep_alive(stream)
        connection = Connection(stream, peer_name(stream), self.clock.monotonic())
        connection.writable.set()
        self.connections.add(connection)
        self.total.count += 1
        return connection

    def session(self, connection: Connection) -> Session:
        """Return the session of a connection, made once and handed on with every request."""
        host, port = connection.transport.get_extra_info("sockname")[:2]
        return Session(listener=self.name, peer=connection.peer, host=host, port=port)

    def _obstacle(self, stream: asyncio.Transport) -> str | None:
        """Return which limit forbids one more connection, if any."""
        if len(self.connections) >= self.connections_max:
            return f"connections.max={self.connections_max}"
        is_out = _descriptor(stream) >= descriptors_for_connections()
        if is_out or self.total.count >= self.total.limit:
            return (
                "this process has reached its open file limit; raise `ulimit -n` or systemd's "
                "LimitNOFILE"
            )
        return None

    def _refuse(self, stream: asyncio.Transport, why: str) -> None:
        self.refused += 1
        stream.abort()
        self._warn("connection.refused", f"total={self.refused} {why}")

    def count_foreign(self, connection: Connection, error: CordwoodError) -> None:
        """Count a peer of a wrong protocol or origin; log at most one per ``REFUSALS_LOGGED_S``."""
        self.foreign[error.name] += 1
        total = self.foreign.total()
        self._warn("connection.foreign", f"peer={connection.peer} total={total} error={error}")

    def _warn(self, event: str, details: str) -> None:
        now = self.clock.monotonic()
        if now - self.logged_at.get(event, float("-inf")) >= REFUSALS_LOGGED_S:
            self.logged_at[event] = now
            logger.warning("%s listener=%s %s", event, self.name, details)

    def release(self, connection: Connection) -> None:
        """Unregister a closed connection and wake up whoever waits to write to it."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.total.count -= 1
        connection.writable.set()

    def touch(self, connection: Connection) -> None:
        """The peer completed a message; bytes that complete nothing do not count as activity."""
        connection.active_at = self.clock.monotonic()

    def sweep(self) -> None:
        """Close idle connections, and paused ones whose peer is gone."""
        for connection in [
            connection
            for connection in self.connections
            if connection.is_paused and self._has_left(connection)
        ]:
            connection.abort()
        oldest = self.clock.monotonic() - self.idle_timeout_s
        silent = [
            connection
            for connection in self.connections
            if connection.active_at < oldest and not connection.is_subscriber
        ]
        for connection in silent:
            if connection.is_busy():
                continue
            self.timed_out += 1
            logger.info("connection.idle listener=%s peer=%s", self.name, connection.peer)
            connection.abort()

    def _has_left(self, connection: Connection) -> bool:
        """Return whether TCP reports the peer of a paused connection as gone."""
        state = tcp_state(connection.transport)
        return state == TCP_CLOSE or (state == TCP_CLOSE_WAIT and not self.serves_half_closed)


def _idle_s(config: BrokerConfig) -> float:
    never = config.idle_timeout_ms == KEEP_ALL
    return float("inf") if never else config.idle_timeout_ms / 1000


class Server:
    """All listeners of one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._total = OpenConnections(share_descriptors(config).connections)
        self._sockets: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.listeners: dict[str, Listener] = {}
        self.addresses: dict[str, list[str]] = {}

    def listener(self, name: str, *, serves_half_closed: bool = True) -> Listener:
        """Return the named listener, with the configured limits; create it on first use."""
        idle_s, connections_max = _idle_s(self._config), self._config.connections_max
        return self.listeners.setdefault(
            name,
            Listener(name, self._clock, connections_max, idle_s, self._total, serves_half_closed),
        )

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use another idle timeout for all connections, and another time to drain."""
        self._config = config
        for listener in self.listeners.values():
            listener.idle_timeout_s = _idle_s(config)

    async def listen(
        self, name: str, addresses: str, factory: Callable[[], asyncio.BaseProtocol], *, tls: bool
    ) -> None:
        """Open the server sockets of a listener; ``off`` opens none."""
        if addresses == "off":
            return
        context = server_context(self._config) if tls else None
        for address in addresses.split(","):
            bound = await self._listen_one(name, address, factory, context)
            self.addresses.setdefault(f"{name}_tls" if tls else name, []).append(bound)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())

    async def _listen_one(
        self,
        name: str,
        address: str,
        factory: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
    ) -> str:
        host, port = parse_address(address, setting=name)
        handshake_s = self._config.handshake_timeout_ms / 1000 if context else None
        loop = asyncio.get_running_loop()
        try:
            opened = await loop.create_server(
                factory,
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
                backlog=1024,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address} for {name}: {error.strerror or error}; "
                f"choose another with --{name} HOST:PORT (port 0 takes any free one)"
            ) from None
        self._sockets.append(opened)
        return str(Address(*opened.sockets[0].getsockname()[:2]))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for listener in self.listeners.values():
                listener.sweep()

    async def stop(self) -> None:
        """Accept no new connections, let running requests finish, then close the rest."""
        if self._sweeper:
            self._sweeper.cancel()
        for opened in self._sockets:
            opened.close()
        connections = [
            connection
            for listener in self.listeners.values()
            for connection in listener.connections
        ]
        for connection in connections:
            connection.quiesce()
        deadline = self._clock.monotonic() + self._config.shutdown_timeout_ms / 1000
        while any(
            connection.is_busy() and not connection.transport.is_closing()
            for connection in connections
        ):
            if self._clock.monotonic() > deadline:
                logger.warning(
                    "connection.undrained count=%d",
                    sum(connection.is_busy() for connection in connections),
                )
                break
            await asyncio.sleep(0.01)
        for connection in connections:
            connection.transport.close()
        await self._await_closed()

    async def _await_closed(self) -> None:
        """Wait until last replies and TLS close messages are sent; then abort what is left."""
        deadline = self._clock.monotonic() + CLOSE_S
        while any(listener.connections for listener in self.listeners.values()):
            if self._clock.monotonic() > deadline:
                break
            await asyncio.sleep(0.005)
        for listener in self.listeners.values():
            for connection in list(listener.connections):
                connection.abort()
        await asyncio.sleep(0)


def descriptors_for_connections() -> float:
    """Return the limit for a connection's descriptor number, independent of the plan at start-up.

    The kernel assigns the lowest free number, so a high number means that those below it are taken.
    Without this reserve the event loop would close new connections silently, and no file could be
    opened.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    return limit - min(RESERVED, limit // 4)


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """Create the configured TLS context; it requires client certificates if a client CA is set."""
    if not (config.tls_cert and config.tls_key):
        raise ConfigError(
            "a TLS listener needs tls.cert and tls.key; `cordwood certs init DIR` makes both"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_client_ca:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cannot load TLS files tls.cert={config.tls_cert} tls.key={config.tls_key} "
            f"tls.client.ca={config.tls_client_ca or '-'}: {error}"
        ) from None
    return context


def _descriptor(transport: asyncio.Transport) -> int:
    raw = transport.get_extra_info("socket")
    return -1 if raw is None else cast("int", raw.fileno())


def tcp_state(transport: asyncio.Transport) -> int | None:
    """Return the kernel's state of a TCP connection, or None if it is not available."""
    raw = transport.get_extra_info("socket")
    if raw is None or raw.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    try:
        return cast("int", raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
    except OSError:
        return None


def _keep_alive(transport: asyncio.Transport) -> None:
    """Enable TCP keepalive, to detect peers that vanished without closing the connection."""
    raw = transport.get_extra_info("socket")
    if raw is None or raw.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):  # the peer is gone already
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 6)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address, for logs and dead letters."""
    address = transport.get_extra_info("peername")
    with contextlib.suppress(OSError):
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in {socket.AF_INET, socket.AF_INET6} and address:
            return str(Address(*address[:2]))
    return str(address or "unknown")
