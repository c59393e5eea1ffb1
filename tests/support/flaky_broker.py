"""A broker in a thread that keeps records in a list and misbehaves at random, by a seed.

It uses the server side of ``cordwood.protocol.line``, so its messages follow the protocol.
``Whims`` decide when it fails: it cuts connections before or after a record is stored, before or
inside an acknowledgement, delays acknowledgements, or does not read from sockets.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from cordwood.errors import CordwoodError, UnexpectedHttp, UnexpectedTls
from cordwood.protocol.line.commands import LineRequest
from cordwood.protocol.line.control import ControlConnection, Refused
from cordwood.protocol.line.http_detection import encode_refusal
from cordwood.protocol.line.ingress import Frames, Hello, IngressConnection, Lines
from cordwood.protocol.line.replies import Welcome, encode_ack, encode_error, encode_welcome
from cordwood.protocol.line.serial import is_after

LIMIT = 2**20
TICK_S = 0.02  # the longest delay of an acknowledgement


class Cut(Exception):
    """The server closes the connection here."""


@dataclass
class Whims:
    """The probability of each failure, per read or reply."""

    seed: int = 0
    cut: float = 0.0  # after storing, before acknowledging
    half: float = 0.0  # inside a reply
    hold: float = 0.0  # no acknowledgement for this read; a later one covers it
    chatter: int = 1  # how often each acknowledgement is sent
    silent: bool = False  # never send an acknowledgement
    silent_connections: int = 0  # send none on that many first connections
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def happens(self, likelihood: float) -> bool:
        return self.random.random() < likelihood


class FlakyServer:
    """Accepts connections on a free port, with a thread for each."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.address: tuple[str, int] = self._listener.getsockname()
        self.connections = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def cut_all(self) -> None:
        for peer in list(self._open):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def serve(self, peer: socket.socket) -> None:
        raise NotImplementedError

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections += 1
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
                self._start(self._serve_one, peer)

    def _serve_one(self, peer: socket.socket) -> None:
        self._open.add(peer)
        with suppress(OSError, Cut):
            wrapped = self._tls.wrap_socket(peer, server_side=True) if self._tls else peer
            self._open.add(wrapped)
            with wrapped:
                self.serve(wrapped)
            self._open.discard(wrapped)
        self._open.discard(peer)
        peer.close()


class FlakyIngress(FlakyServer):
    """An ingress listener; ``stored`` holds what a subscriber would see, per producer."""

    def __init__(self, whims: Whims | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.whims = whims or Whims()
        self.stored: dict[str, list[tuple[int, bytes, bytes]]] = defaultdict(list)
        self.last_n: dict[str, int] = defaultdict(int)  # stored
        self.durable_n: dict[str, int] = defaultdict(int)  # acknowledged, which happens later
        self.hellos: list[Hello] = []
        self.received = 0  # messages received, including duplicates
        self.refusal: CordwoodError | None = None  # sent once instead of an acknowledgement
        self._lock = threading.Lock()

    def serve(self, peer: socket.socket) -> None:
        connection = IngressConnection(LIMIT)
        name: str | None = None
        is_owed = False
        peer.settimeout(TICK_S)
        while True:
            try:
                data = peer.recv(4096)
            except TimeoutError:
                if is_owed:
                    is_owed = self._acknowledge(peer, connection, name)
                continue
            if not data:
                return
            connection.receive(data)
            while (event := connection.next_event()) is not None:
                if isinstance(event, Hello):
                    name = event.producer
                    self.hellos.append(event)
                    welcome = Welcome(name, event.epoch or 0, self.durable_n[name])
                    self._reply(peer, connection.encode(encode_welcome(welcome)))
                elif isinstance(event, Lines):
                    is_owed |= self._store(name, bytes(event.block).splitlines())
                elif isinstance(event, Frames):
                    is_owed |= self._store(name, event.bodies)
            if self.whims.happens(self.whims.cut):
                raise Cut
            if is_owed and not self.whims.happens(self.whims.hold):
                is_owed = self._acknowledge(peer, connection, name)

    def _store(self, name: str | None, bodies: object) -> bool:
        with self._lock:
            for body in bodies:
                key, _, n, payload = body.split(b"|", 3)
                self.received += 1
                if is_after(int(n), self.last_n[name]):
                    self.stored[name].append((int(n), key, payload))
                    self.last_n[name] = int(n)
        return True

    def _acknowledge(self, peer: socket.socket, connection: IngressConnection, name: str) -> bool:
        if self.refusal:
            error, self.refusal = self.refusal, None
            self._reply(peer, connection.encode(encode_error(error)))
            raise Cut
        is_silent = self.whims.silent or self.connections <= self.whims.silent_connections
        if not is_silent:
            with self._lock:
                self.durable_n[name] = self.last_n[name]
            reply = connection.encode(encode_ack(self.durable_n[name]))
            self._reply(peer, reply * self.whims.chatter)
        return is_silent

    def _reply(self, peer: socket.socket, data: bytes) -> None:
        if self.whims.happens(self.whims.half):
            peer.sendall(data[: self.whims.random.randrange(len(data))])
            raise Cut
        peer.settimeout(None)  # a peer that does not read blocks this thread
        peer.sendall(data)
        peer.settimeout(TICK_S)


class FlakyControl(FlakyServer):
    """A control listener; ``answer`` returns the bytes to send, or raises ``Cut``.

    The bytes are sent unchanged, so they may be part of a reply or several replies.
    """

    def __init__(self, answer: Callable[[LineRequest, ControlConnection], bytes]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[LineRequest] = []

    def serve(self, peer: socket.socket) -> None:
        try:
            self._serve_requests(peer)
        except (UnexpectedHttp, UnexpectedTls) as error:  # a client finds out what this is
            peer.sendall(encode_refusal(error) or b"")

    def _serve_requests(self, peer: socket.socket) -> None:
        connection = ControlConnection(LIMIT)
        while data := peer.recv(4096):
            connection.receive(data)
            while (request := connection.next_request()) is not None:
                if isinstance(request, Refused):
                    peer.sendall(connection.encode(encode_error(request.error)))
                    continue
                self.requests.append(request)
                peer.sendall(self.answer(request, connection))
