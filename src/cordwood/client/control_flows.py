"""Client side of the control protocol, as flows: one request and its reply, or a stream.

Messages are always framed, so payloads may contain any byte. An idempotent request is sent again if
an existing connection turns out to be broken, as happens after a long idle time. ``PUT`` and
``GET`` are not repeated, because the broker may have executed the first one.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from cordwood.address import Address
from cordwood.client.effects import Connect, Diagnose, Flow, Transfer
from cordwood.client.flow_methods import Runner, flow_method
from cordwood.client.producer_flows import whole
from cordwood.errors import InvalidPartitions, ProtocolError, UnavailableError
from cordwood.model import TopicPartition
from cordwood.protocol.line import commands as c
from cordwood.protocol.line import replies as r
from cordwood.protocol.line.arguments import StartPosition, Target, encode_target
from cordwood.protocol.line.framing import Framing, Splitter
from cordwood.protocol.line.records import Line, parse_record
from cordwood.tls import ClientTls

S = TypeVar("S")  # the subscription: blocking or async
T = TypeVar("T")

_FRAMES: Final = Framing.FRAMES
_REPLY_BYTES_MAX: Final = 64 * 1024 * 1024


class StatusWord(StrEnum):
    """The state of a record."""

    PENDING = "PENDING"  # durable, and some registered reader has not read it yet
    PROCESSED = "PROCESSED"
    ARCHIVED = "ARCHIVED"  # deleted from the broker's disk, and in a bundle
    UNKNOWN = "UNKNOWN"  # never written, or deleted without a bundle


class Status(NamedTuple):
    """The answer to ``status``; it names the bundle of an archived record."""

    word: StatusWord
    bundle: str | None = None


class Taken(NamedTuple):
    """A record that ``get`` returned; a tombstone's payload is None."""

    payload: bytes | None


class ClientFlows(Runner, Generic[S]):
    """The methods of a client, as flows; ``blocking.Client`` and ``aio.Client`` run them."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        tls: ClientTls | ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Connects on the first request; ``timeout_s`` limits the wait for a reply.

        ``tls``: connect with TLS, by certificates (``ClientTls``) or a context of your own.
        """
        super().__init__(address, tls, timeout_s)
        self._replies: Splitter | None = None  # None while not connected

    @flow_method
    def get_ack(self, topic: str | None = None, *, partition: int | None = None) -> Flow[int]:
        """Return the last durable seq of the topic (default: the ingress topic); 0 if empty.

        Raises ``InvalidPartitions`` if the topic has several partitions and none is named.
        """
        target = None if topic is None else _target(topic, partition)
        return self._ask(c.GetAck(target), _parse_single_ack)

    @flow_method
    def get_acks(self, topic: str) -> Flow[dict[int, int]]:
        """Return the last durable seq of each of the topic's partitions."""
        return self._ask(c.GetAck(topic), r.parse_acks)

    @flow_method
    def status(
        self, seq: int, topic: str | None = None, *, partition: int | None = None
    ) -> Flow[Status]:
        """Return the state of a record; name the partition if the topic has several."""
        target = None if topic is None else _target(topic, partition)
        return self._ask(c.GetStatus(seq, target), _parse_status)

    def subscribe(
        self,
        topic: str,
        *,
        from_seq: int | None = None,
        from_start: bool = False,
        reader: str | None = None,
        partition: int | None = None,
        idle_timeout_s: float | None = None,
    ) -> S:
        """Stream the records of a topic, or of one partition, on a separate connection.

        It starts at a seq (of one partition), at the start, at the cursor of the named reader, or
        else with new records only. Each partition's records come in order, and partitions take
        turns. Iteration ends when nothing arrives for ``idle_timeout_s``; without it, never.
        """
        assert from_seq is None or not from_start, "from_seq and from_start exclude each other"
        start: int | StartPosition = StartPosition.CURSOR if from_seq is None else from_seq
        if from_start:
            start = StartPosition.START
        return self._subscription(
            c.Subscribe(_target(topic, partition), start, reader), idle_timeout_s
        )

    def _subscription(self, request: c.Subscribe, idle_timeout_s: float | None) -> S:
        raise NotImplementedError

    @flow_method
    def ack(self, topic: str, reader: str, seq: int, *, partition: int | None = None) -> Flow[None]:
        """Mark everything up to and including ``seq`` as processed; durable on return.

        Name the partition if the topic has several: a ``Line`` has both.
        """
        return self._ask(c.Ack(_target(topic, partition), reader, seq), r.parse_ok)

    @flow_method
    def register(self, topic: str, reader: str | None = None) -> Flow[None]:
        """Create the topic if it is missing and, with a name, register a reader on it."""
        return self._ask(c.Register(topic, reader), r.parse_ok)

    @flow_method
    def put(self, topic: str, payload: str | bytes, *, partition: int | None = None) -> Flow[None]:
        """Append one record, durable on return. Not repeated if the connection breaks.

        Without a partition, several of them take turns.
        """
        body = payload.encode() if isinstance(payload, str) else payload
        request = c.Put(_target(topic, partition), body)
        return self._ask(request, r.parse_ok, is_repeatable=False)

    @flow_method
    def get(
        self, topic: str, reader: str | None = None, *, partition: int | None = None
    ) -> Flow[Taken | None]:
        """Take the reader's next record; None if there is none.

        Without a partition, several of them take turns.
        """
        request = c.Get(_target(topic, partition), reader)
        return self._ask(request, _parse_taken, is_repeatable=False)

    @flow_method
    def state(self, topic: str, *, partition: int | None = None) -> Flow[dict[str, object]]:
        """Return the segments and cursors; of several partitions, a summary of each."""
        return self._ask(c.State(_target(topic, partition)), r.parse_json)

    @flow_method
    def metrics(self) -> Flow[dict[str, object]]:
        """Return the broker's counters."""
        return self._ask(c.Metrics(), r.parse_json)

    @flow_method
    def readers(self, topic: str | None = None) -> Flow[dict[str, object]]:
        """Return the registered readers and their cursors."""
        return self._ask(c.Readers(topic), r.parse_json)

    @flow_method
    def reset(
        self, topic: str, reader: str, to: int | StartPosition, *, partition: int | None = None
    ) -> Flow[None]:
        """Move a reader's cursor: it reads next at ``to``, a seq, ``START`` or ``END``.

        Without a partition, ``START`` and ``END`` are those of each partition.
        """
        return self._ask(c.Reset(_target(topic, partition), reader, to), r.parse_ok)

    @flow_method
    def remove(self, topic: str, reader: str) -> Flow[None]:
        """Remove a reader; RECLAIM no longer waits for it."""
        return self._ask(c.Remove(topic, reader), r.parse_ok)

    @flow_method
    def configure(self, topic: str, settings: Mapping[str, str]) -> Flow[None]:
        """Change a topic's settings, all or none, with Kafka's names and values."""
        return self._ask(c.Configure(topic, tuple(settings.items())), r.parse_ok)

    @flow_method
    def cut(self, topic: str) -> Flow[int]:
        """Seal the active segment now; return how many segments were sealed."""
        return self._ask(c.Cut(topic), r.parse_count, is_repeatable=False)

    @flow_method
    def drain(self, reader: str, topic: str | None = None) -> Flow[int]:
        """Acknowledge everything for a reader, in all its routes or in one topic.

        Return how many records that were.
        """
        return self._ask(c.Drain(reader, topic), r.parse_count)

    @flow_method
    def reclaim(self, topic: str | None = None) -> Flow[int]:
        """Delete the segments that RECLAIM allows now; return how many were deleted."""
        return self._ask(c.Reclaim(topic), r.parse_count, is_repeatable=False)

    def _ask(
        self, request: c.LineRequest, parse: Callable[[bytes], T], *, is_repeatable: bool = True
    ) -> Flow[T]:
        """Return the reply; raise the broker's error, or ``UnavailableError`` without a reply."""
        data = _FRAMES.encode(c.encode_command(request))
        was_connected = self._replies is not None
        try:
            reply = yield from self._exchange(data)
        except OSError as error:
            if not was_connected:
                yield Diagnose(error)
            if not (was_connected and is_repeatable):
                raise self._away(error) from error
            try:
                reply = yield from self._exchange(data)
            except OSError as again:
                raise self._away(again) from again
        return parse(reply)

    def _exchange(self, data: bytes) -> Flow[bytes]:
        """Never reuse the connection after a failure: its next reply may belong to this request."""
        replies, self._replies = self._replies, None
        is_first = replies is None
        if replies is None:
            yield Connect(self._timeout_s)
            replies = Splitter(_FRAMES, _REPLY_BYTES_MAX)
        while (reply := replies.next_message()) is None:
            arrived = yield Transfer(data, True, self._timeout_s)
            if not arrived:
                raise TimeoutError(f"no reply within {self._timeout_s} s")
            if is_first and arrived.startswith(b"HTTP/"):
                raise ConnectionError("the reply is HTTP")
            is_first = False
            replies.receive(arrived)
            data = b""
        self._replies = replies
        return whole(reply)

    def _away(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"the broker at {self._address} is unreachable ({error}); is it running?"
        )


class SubscriptionFlows(Runner):
    """The flow of one subscription, on its own connection."""

    def __init__(
        self,
        address: Address,
        tls: ClientTls | ssl.SSLContext | None,
        timeout_s: float,
        request: c.Subscribe,
        idle_timeout_s: float | None,
    ) -> None:
        """Internal: ``Client.subscribe`` creates it; it connects for the first record."""
        super().__init__(address, tls, timeout_s)
        self._opening = _FRAMES.encode(c.encode_command(request))
        self._idle_timeout_s = idle_timeout_s
        self._splitter = Splitter(_FRAMES, _REPLY_BYTES_MAX)
        self._lines: deque[Line] = deque()
        self._is_open = False
        self._target = request.target
        self._last_seqs: dict[int, int] = {}  # by partition

    def _take(self) -> Line | None:
        """Return a record that has already arrived, if any."""
        return self._lines.popleft() if self._lines else None

    def _next_line(self) -> Flow[Line | None]:
        """The next record, or None after the idle time-out; raise the error of an ``ERR``."""
        try:
            if not self._is_open:
                yield Connect(self._timeout_s)
                yield Transfer(self._opening, False, self._timeout_s)
                self._is_open = True
            while not self._lines:
                arrived = yield Transfer(b"", True, self._idle_timeout_s)
                if not arrived:
                    return None
                self._receive(arrived)
        except OSError as error:
            if not self._last_seqs:
                yield Diagnose(error)
            raise self._interrupted(error) from error
        return self._lines.popleft()

    def _interrupted(self, error: OSError) -> UnavailableError:
        """Name the last seq that arrived, of each partition if there are several."""
        last = max(self._last_seqs.values(), default=0)
        after, again = f"seq {last}", f"from seq {last + 1}"
        if len(self._last_seqs) > 1:
            seqs = (f"{partition}:{seq}" for partition, seq in sorted(self._last_seqs.items()))
            after, again = f"partition:seq {' '.join(seqs)}", "to each partition from its next seq"
        return UnavailableError(
            f"the subscription to {encode_target(self._target)} at {self._address} was interrupted "
            f"after {after} ({error}); subscribe again {again}"
        )

    def _receive(self, arrived: bytes) -> None:
        target = self._target
        partition = target.partition if isinstance(target, TopicPartition) else 0
        self._splitter.receive(arrived)
        while (body := self._splitter.next_message()) is not None:
            line = parse_record(r.check_reply(whole(body)), _FRAMES, partition)
            self._last_seqs[line.partition] = line.seq
            self._lines.append(line)


def _target(topic: str, partition: int | None) -> Target:
    return topic if partition is None else TopicPartition(topic, partition)


def _parse_single_ack(body: bytes) -> int:
    acks = r.parse_acks(body)
    if len(acks) > 1:
        raise InvalidPartitions(
            f"the topic has {len(acks)} partitions, each with a seq of its own; name a partition, "
            "or call get_acks"
        )
    return acks[0]


def _parse_status(body: bytes) -> Status:
    word, _, bundle = r.check_reply(body).decode("utf-8", "replace").partition(" ")
    if word not in set(StatusWord):
        raise ProtocolError(f"{word[:80]!r} is not a record status")
    return Status(StatusWord(word), bundle or None)


def _parse_taken(body: bytes) -> Taken | None:
    return None if body == r.EMPTY else Taken(r.parse_got(body, _FRAMES))
