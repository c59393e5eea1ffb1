"""The ingress listener without I/O: bytes in; whole blocks of lines, or frames, out.

One message is ``routing_key|timestamp|n|payload``. Lines leave here in blocks, uncounted and
unparsed, for ``batch.lines`` to turn into record batches in one call: nothing in this room works
line by line. Only a connection's very first line is looked at, since it may be a ``HELLO``.

The events do not depend on how the bytes were cut into packets, except that neighbouring blocks
may come as one or several; joined, they are the same.
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
    """The producer names itself: acknowledgements are wanted, and duplicates are to be dropped."""

    producer: str
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, each with its newline; the block may share memory with what was received."""

    block: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole messages of a framed connection; their payloads may hold any byte."""

    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HalfLine:
    """What the peer left unfinished when it closed; never a record, always a dead letter."""

    data: bytes


IngressEvent = Hello | Lines | Frames | TooLong | HalfLine


def is_producer_name(name: str) -> bool:
    """Whether a producer may be called this."""
    return bool(_PRODUCER_NAME.fullmatch(name))


def encode_hello(producer: str, epoch: int | None) -> bytes:
    """A HELLO message, without framing."""
    assert is_producer_name(producer), "the caller checks the name"
    return f"HELLO {producer}{'' if epoch is None else f' {epoch}'}".encode()


def parse_hello(line: bytes) -> Hello | None:
    """The HELLO a first line is, or None if it is a record; raises ``BadHello``."""
    if not _HELLO.fullmatch(line):
        return None
    words = line.decode("utf-8", "backslashreplace").split()[1:]
    if not 1 <= len(words) <= 2:
        raise BadHello(f"HELLO takes a name and perhaps an epoch; send {HELLO_USAGE}")
    if not is_producer_name(words[0]):
        raise BadHello(
            f"{words[0][:128]!r} cannot name a producer; use 1 to 128 of A-Z a-z 0-9 . _ -"
        )
    if len(words) == 1:
        return Hello(words[0])
    if not (words[1].isascii() and words[1].isdigit() and len(words[1]) <= 5):
        raise BadHello(f"epoch {words[1][:20]!r} is not a whole number from 0 to {EPOCH_MAX}")
    if int(words[1]) > EPOCH_MAX:
        raise BadHello(f"epoch {words[1]} is above {EPOCH_MAX}")
    return Hello(words[0], int(words[1]))


class IngressConnection:
    """One ingress connection: feed it bytes, take its events until None."""

    def __init__(self, line_bytes_max: int) -> None:
        """Messages above ``line_bytes_max`` become ``TooLong`` and are not kept whole."""
        self._bytes_max = line_bytes_max
        self._head = b""  # what came before the framing was known
        self._events: deque[IngressEvent] = deque()
        self._splitter = Splitter(Framing.FRAMES, line_bytes_max)
        self._tail = bytearray()  # text: the line not yet ended
        self._skipped = 0  # text: bytes of a too long line let go so far; its start is in the tail
        self._is_first = True
        self.framing: Framing | None = None  # None until the first bytes have told

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take what arrived; raises ``ProtocolError`` when the peer cannot be understood at all.

        ``bytes`` are not copied into the blocks handed out; a view of a reused buffer is.
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
        """Whether ``receive`` would hand this out as it is: whole lines, between two others.

        As most packets are that hold few lines. Who asks may then do without ``receive``.
        """
        return (
            not (self._tail or self._skipped or self._is_first or self._events)
            and self.framing is Framing.TEXT
            and data.endswith(b"\n")
            and len(data) <= self._bytes_max
        )

    def receive_eof(self) -> None:
        """The peer has closed its side; what it left unfinished becomes a last event."""
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
        """The next event in order, or None until more arrives."""
        return self._events.popleft() if self._events else None

    def encode(self, reply: bytes) -> bytes:
        """A reply in the framing the peer uses."""
        return (self.framing or Framing.TEXT).encode(reply)

    def _receive_frames(self, data: bytes | bytearray | memoryview) -> None:
        """Gather neighbouring frames into one event; a too long one stands between two."""
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
            self._add_frames(bodies)  # those before a BadFrame arrived whole

    def _add_frames(self, bodies: list[bytes]) -> None:
        if bodies:
            self._events.append(Frames(tuple(bodies)))

    def _copy(self, view: memoryview) -> bytes:
        """What a view shows, behind the line that had begun: one copy does for both.

        Unless that line is the longer part of it: a drip would copy it again and again.
        """
        if self._skipped or len(self._tail) > len(view):
            return bytes(view)
        whole = b"".join((self._tail, view))
        self._tail.clear()
        return whole

    def _receive_text(self, data: bytes | bytearray) -> None:
        """Hand out everything up to the last newline in one block; keep the rest."""
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
        """Let go of a too long line as far as it goes; where the next one starts."""
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
        """A block of whole lines, less a HELLO at its head and too long lines within."""
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
        """Find too long lines by leaps: all lines that end within one limit are short enough."""
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
        """Only the first line is looked at: a bad one later is a dead letter like any other."""
        if self.framing is Framing.TEXT and is_request_line(line):
            self._tail.clear()
            self._skipped = 0
            raise http_error()

    def _is_first_hello(self, message: bytes) -> bool:
        """Whether this is the connection's first message and a HELLO, which becomes its event."""
        if not self._is_first:
            return False
        self._is_first = False
        self._check_http(message)
        hello = parse_hello(message) if len(message) <= self._bytes_max else None
        if hello:
            self._events.append(hello)
        return hello is not None
