"""The ingress protocol without I/O: bytes in; blocks of complete lines, or frames, out.

One message is ``routing_key|timestamp|n|payload``. Lines are returned in blocks, neither counted
nor parsed; ``batch.lines`` turns a block into record batches in one call. Nothing in this module
works line by line. Only the first line of a connection is examined, because it may be a ``HELLO``.

The events do not depend on how the bytes were split into packets, except that adjacent blocks may
come as one or several; joined, they are the same.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from cordwood.errors import BadHello
from cordwood.protocol.line.framing import KEPT_BYTES, Framing, Splitter, TooLong, plan_framing
from cordwood.protocol.line.http_detection import http_error, is_request_line

EPOCH_MAX: Final = 2**15 - 1
HELLO_USAGE: Final = "HELLO <producer> [<epoch>]"

_PRODUCER_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HELLO = re.compile(rb"hello([ \t\r].*)?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hello:
    """The producer names itself: it wants acknowledgements, and duplicates shall be dropped."""

    producer: str
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Complete lines with their newlines; the block may share memory with the received data."""

    block: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Frames:
    """Complete messages of a framed connection; their payloads may contain any byte."""

    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HalfLine:
    """An incomplete line at the end of the stream; never a record, always a dead letter."""

    data: bytes


IngressEvent = Hello | Lines | Frames | TooLong | HalfLine


def is_producer_name(name: str) -> bool:
    """Whether this is a valid producer name."""
    return bool(_PRODUCER_NAME.fullmatch(name))


def encode_hello(producer: str, epoch: int | None) -> bytes:
    """Encode a HELLO message, without framing."""
    assert is_producer_name(producer), "the caller checks the name"
    return f"HELLO {producer}{'' if epoch is None else f' {epoch}'}".encode()


def parse_hello(line: bytes) -> Hello | None:
    """Parse a first line as HELLO; None if it is a record; raises ``BadHello``."""
    if not _HELLO.fullmatch(line):
        return None
    words = line.decode("utf-8", "backslashreplace").split()[1:]
    if not 1 <= len(words) <= 2:
        raise BadHello(f"HELLO takes a name and optionally an epoch; send {HELLO_USAGE}")
    if not is_producer_name(words[0]):
        raise BadHello(
            f"{words[0][:128]!r} is not a valid producer name; use 1 to 128 characters of A-Z a-z "
            "0-9 . _ -"
        )
    if len(words) == 1:
        return Hello(words[0])
    if not (words[1].isascii() and words[1].isdigit() and len(words[1]) <= 5):
        raise BadHello(f"epoch {words[1][:20]!r} is not a whole number from 0 to {EPOCH_MAX}")
    if int(words[1]) > EPOCH_MAX:
        raise BadHello(f"epoch {words[1]} is above {EPOCH_MAX}")
    return Hello(words[0], int(words[1]))


class IngressConnection:
    """One ingress connection: pass it bytes, then take events until None."""

    def __init__(self, line_bytes_max: int) -> None:
        """Messages above ``line_bytes_max`` become ``TooLong``; only their first bytes are kept."""
        self._bytes_max = line_bytes_max
        self._head = b""  # bytes received before the framing was known
        self._events: deque[IngressEvent] = deque()
        self._splitter = Splitter(Framing.FRAMES, line_bytes_max)
        self._tail = bytearray()  # text: the incomplete last line
        self._skipped = 0  # text: length so far of a too long line; its start is in the tail
        self._is_first = True
        self.framing: Framing | None = None  # None until the first bytes decide it

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes; raise ``ProtocolError`` if they are not this protocol at all.

        ``bytes`` are not copied into the returned blocks; a view of a reused buffer is.
        """
        if self.framing is None:
            data = self._head + bytes(data)
            self._head = b""
            self.framing = plan_framing(data, self._bytes_max)
        if self.framing is None:
            self._head = data if isinstance(data, bytes) else bytes(data)
        elif self.framing is Framing.TEXT:
            self._receive_text(self._copy(data) if isinstance(data, memoryview) else data)
        else:
            self._receive_frames(data)

    def is_block(self, data: bytes | bytearray) -> bool:
        """Whether ``receive`` would return this unchanged: complete lines, and nothing pending.

        Most packets with few lines are like this. The caller may then skip ``receive``.
        """
        return (
            not (self._tail or self._skipped or self._is_first or self._events)
            and self.framing is Framing.TEXT
            and data.endswith(b"\n")
            and len(data) <= self._bytes_max
        )

    def receive_eof(self) -> None:
        """The peer closed its side; an incomplete message becomes the last event."""
        if self.framing is None:
            self.framing = plan_framing(self._head, self._bytes_max, at_end=True)
            head, self._head = self._head, b""
            self.receive(head)
        if self.framing is Framing.FRAMES:
            half = self._splitter.take_half()
        elif self._skipped:
            half = TooLong(bytes(self._tail), self._skipped)
        else:
            half = bytes(self._tail)
        self._tail.clear()
        self._skipped = 0
        if isinstance(half, TooLong):
            self._events.append(half)
        elif half:
            self._events.append(HalfLine(half))

    def next_event(self) -> IngressEvent | None:
        """Return the next event in order, or None until more bytes arrive."""
        return self._events.popleft() if self._events else None

    def encode(self, reply: bytes) -> bytes:
        """Encode a reply in the framing that the peer uses."""
        return (self.framing or Framing.TEXT).encode(reply)

    def _receive_frames(self, data: bytes | bytearray | memoryview) -> None:
        """Collect adjacent frames into one event; a too long frame separates two events."""
        self._splitter.receive(data)
        bodies: list[bytes] = []
        try:
            while (message := self._splitter.next_message()) is not None:
                if isinstance(message, TooLong):
                    self._add_frames(bodies)
                    bodies = []
                    self._events.append(message)
                    self._is_first = False
                elif not self._is_first_hello(message):
                    bodies.append(message)
        finally:
            self._add_frames(bodies)  # frames before a BadFrame are complete

    def _add_frames(self, bodies: list[bytes]) -> None:
        if bodies:
            self._events.append(Frames(tuple(bodies)))

    def _copy(self, view: memoryview) -> bytes:
        """Copy a view together with the incomplete line before it, in one step.

        If that line is longer than the view, copy only the view: with many small packets the
        line would be copied again each time.
        """
        if self._skipped or len(self._tail) > len(view):
            return bytes(view)
        whole = b"".join((self._tail, view))
        self._tail.clear()
        return whole

    def _receive_text(self, data: bytes | bytearray) -> None:
        """Return everything up to the last newline as one block; keep the rest."""
        if self.is_block(data):
            self._events.append(Lines(bytes(data)))
            return
        start = 0
        if self._skipped:
            start = self._skip_line(data)
        end = data.rfind(b"\n", start) + 1
        if end > start:
            fresh = memoryview(data)[start:end]
            block = b"".join((self._tail, fresh)) if self._tail else fresh
            self._tail = bytearray(memoryview(data)[end:])
            self._add_lines(block)
        elif not self._skipped:
            self._tail += memoryview(data)[start:]
        if not self._skipped and len(self._tail) > self._bytes_max:
            self._skipped = len(self._tail)
            del self._tail[KEPT_BYTES:]

    def _skip_line(self, data: bytes | bytearray) -> int:
        """Discard the part of a too long line in ``data``; return where the next line starts."""
        cut = data.find(b"\n")
        here = cut if cut >= 0 else len(data)
        self._tail += memoryview(data)[: min(here, KEPT_BYTES - len(self._tail))]
        self._skipped += here
        if cut < 0:
            return here
        if self._is_first:
            self._check_http(bytes(self._tail))
        self._events.append(TooLong(bytes(self._tail), self._skipped))
        self._tail.clear()
        self._skipped = 0
        self._is_first = False
        return cut + 1

    def _add_lines(self, block: bytes | memoryview) -> None:
        """Add a block of complete lines, without a HELLO at its head and without too long lines."""
        start = 0
        if self._is_first:
            line = bytes(block).partition(b"\n")[0]
            if self._is_first_hello(line):
                start = len(line) + 1
        if len(block) - start > self._bytes_max + 1:
            self._add_bounded(bytes(block)[start:])
        elif len(block) > start:
            self._events.append(Lines(block[start:]))

    def _add_bounded(self, block: bytes) -> None:
        """Find too long lines without visiting each line: those that end within the limit fit."""
        view = memoryview(block)
        run = start = 0
        while start < len(block):
            cut = block.rfind(b"\n", start, start + self._bytes_max + 1)
            if cut < 0:
                cut = block.index(b"\n", start)
                if start > run:
                    self._events.append(Lines(view[run:start]))
                kept = block[start : min(cut, start + KEPT_BYTES)]
                self._events.append(TooLong(kept, cut - start))
                run = cut + 1
            start = cut + 1
        if start > run:
            self._events.append(Lines(view[run:start]))

    def _check_http(self, line: bytes) -> None:
        """Check the first line only; a bad line later is a dead letter like any other."""
        if self.framing is Framing.TEXT and is_request_line(line):
            self._tail.clear()
            self._skipped = 0
            raise http_error()

    def _is_first_hello(self, message: bytes) -> bool:
        """Whether this is the connection's first message and a HELLO; if so, add its event."""
        if not self._is_first:
            return False
        self._is_first = False
        self._check_http(message)
        hello = parse_hello(message) if len(message) <= self._bytes_max else None
        if hello:
            self._events.append(hello)
        return hello is not None
