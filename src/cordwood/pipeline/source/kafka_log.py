"""A ``Log`` over the Kafka protocol, for queries that cannot reach the segment files.

A blocking client with our own codec. It finds partition leaders, lists offsets, fetches batches as
they are stored, and commits a query's cursor. All requests are idempotent, so after a broken
connection it reconnects and repeats the request, up to ``fetchOffset.numRetries`` times.

Never decodes records; ``rows`` does that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from cordwood.client.effects import parse_address
from cordwood.client.kafka_connection import ClientConnection, Reply
from cordwood.config import MIB
from cordwood.errors import (
    DamagedRecords,
    DataLoss,
    OffsetOutOfRange,
    UnavailableError,
    UnknownTopic,
)
from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import Bounds, Offsets, Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.segment_files import Chunk, StartHint, whole_batches
from cordwood.pipeline.source.splits import SplitPiece
from cordwood.pipeline.source.transactions import end_with_markers
from cordwood.protocol.kafka.messages.commits import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from cordwood.protocol.kafka.messages.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from cordwood.protocol.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from cordwood.protocol.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from cordwood.protocol.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from cordwood.protocol.kafka.primitives import NO_ID

Address = tuple[str, int]

CLIENT_ID: Final = "cordwood-spark"
FETCH_BYTES: Final = 8 * MIB
RECORD_BYTES_GUESS: Final = 128  # for planning tasks; the Kafka protocol does not report sizes
_VERSIONS: Final = {  # old enough for every broker, new enough for the fields used here
    MetadataRequest: 10,  # the first version with topic ids
    ListOffsetsRequest: 5,
    FetchRequest: 11,
    OffsetCommitRequest: 7,
    FindCoordinatorRequest: 2,
}
_OUT_OF_RANGE: Final = 1
_UNKNOWN_TOPIC: Final = 3
_MOVED: Final = frozenset({5, 6, 14, 15, 16})  # leader or coordinator is elsewhere or not ready
_EARLIEST: Final = -2
_LATEST: Final = -1


class KafkaLog:
    """A ``Log`` that reads from brokers; not thread-safe, use one per thread."""

    def __init__(self, options: SourceOptions) -> None:
        """Connects on the first request."""
        assert options.servers is not None, "options ask for a path or a broker"
        self._bootstrap = [parse_address(server.strip()) for server in options.servers.split(",")]
        self._options = options
        self._connections: dict[Address, ClientConnection] = {}
        self._leaders: dict[TopicPartition, Address] = {}

    # --- topics and offsets ------------------------------------------------------------------

    def topics(self) -> dict[str, list[int]]:
        """Every topic and its partitions, without internal topics."""
        reply = self._read_metadata()
        return {
            topic.name: sorted(part.partition for part in topic.partitions)
            for topic in reply.topics
            if topic.name is not None and not topic.is_internal and not topic.error_code
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The topic ids from the Metadata response."""
        asked = [MetadataRequestTopic(name=topic) for topic in topics]
        if not asked:
            return {}
        request = MetadataRequest(asked, allow_auto_topic_creation=False)
        reply = self._retried(lambda: self._ask_any(request, MetadataResponse))
        return {
            topic.name: str(topic.topic_id)
            for topic in reply.topics
            if topic.name is not None and topic.topic_id != NO_ID and not topic.error_code
        }

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and high watermark or last stable offset of each partition."""
        starts = self._list_offsets(dict.fromkeys(tps, _EARLIEST))
        ends = self._list_offsets(dict.fromkeys(starts, _LATEST))
        return {tp: Bounds(starts[tp], end) for tp, end in ends.items()}

    def find_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp at or after ``timestamp_ms``; None if there is none."""
        offset = self._list_offsets({tp: timestamp_ms}).get(tp, -1)
        return None if offset < 0 else offset

    def pieces(self, whole: Range, split_bytes: int) -> list[SplitPiece]:
        """Cut the range by number of offsets, as sizes in bytes are unknown."""
        step = max(1, split_bytes // RECORD_BYTES_GUESS)
        cuts = [*range(whole.start, whole.end, step), whole.end]
        return [
            SplitPiece(start, end, (end - start) * RECORD_BYTES_GUESS)
            for start, end in itertools.pairwise(cuts)
        ]

    def hint(self, tp: TopicPartition, offset: int) -> StartHint | None:  # noqa: ARG002 - of ``Log``
        """Always None: the broker looks offsets up itself."""
        return None

    # --- batches -----------------------------------------------------------------------------

    def chunks(self, whole: Range, hint: StartHint | None) -> Iterator[Chunk]:  # noqa: ARG002
        """Fetch the batches of the range, one response after another."""
        offset = whole.start
        wait_until = time.monotonic() + self._options.poll_timeout_ms / 1000
        while offset < whole.end:
            try:
                found = self._fetch(whole.tp, offset)
            except OffsetOutOfRange:
                offset = self._after_loss(whole, offset)
                continue
            size_bytes, reached = whole_batches(found.records or b"", whole.end)
            if size_bytes:
                data = memoryview(found.records or b"")[:size_bytes]
                begun = [(a.producer_id, a.first_offset) for a in found.aborted_transactions or ()]
                yield Chunk(data, offset, reached, end_with_markers(data, begun))
                offset = max(offset + 1, reached)
            elif reached >= whole.end or found.high_watermark >= whole.end:
                return  # only a gap is left before the end
            elif time.monotonic() > wait_until:
                raise UnavailableError(
                    f"{whole.tp} ends at {found.high_watermark}: offsets up to {whole.end} did not "
                    "come within kafkaConsumer.pollTimeoutMs"
                )

    def _fetch(self, tp: TopicPartition, offset: int) -> FetchedPartition:
        wanted = FetchPartition(tp.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=int(self._options.committed),
            topics=[FetchTopic(tp.topic, [wanted])],
        )
        found = self._led(tp, lambda at: _only(self._ask(at, request, FetchResponse)))
        return cast(FetchedPartition, found)

    def _after_loss(self, whole: Range, offset: int) -> int:
        """Raise, or continue at the current log start."""
        start = self._list_offsets({whole.tp: _EARLIEST})[whole.tp]
        if start <= offset:
            raise UnavailableError(f"{whole.tp} does not reach offset {offset} any more")
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"offsets {offset} to {min(start, whole.end)} of {whole.tp} were reclaimed before "
                "the query read them; set failOnDataLoss to false to go on without them, and "
                "commitGroup to make RECLAIM wait"
            )
        return start

    # --- cursors -----------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for the group, like a consumer that is not a member of it."""
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for tp, offset in sorted(offsets.items()):
            topics.setdefault(tp.topic, []).append(OffsetCommitPartition(tp.partition, offset))
        request = OffsetCommitRequest(
            group, topics=[OffsetCommitTopic(name, parts) for name, parts in topics.items()]
        )

        def attempt() -> None:
            found = self._ask_any(FindCoordinatorRequest(group), FindCoordinatorResponse)
            _check(found.error_code, f"coordinator of {group}")
            reply = self._ask((found.host, found.port), request, OffsetCommitResponse)
            for topic in reply.topics:
                for part in topic.partitions:
                    _check(part.error_code, f"commit of {topic.name}-{part.partition} by {group}")

        self._retried(attempt)

    def close(self) -> None:
        """Close every connection."""
        while self._connections:
            self._connections.popitem()[1].close()

    # --- internal ----------------------------------------------------------------------------

    def _read_metadata(self) -> MetadataResponse:
        request = MetadataRequest(None, allow_auto_topic_creation=False)
        reply = self._retried(lambda: self._ask_any(request, MetadataResponse))
        nodes = {broker.node_id: (broker.host, broker.port) for broker in reply.brokers}
        self._leaders = {
            TopicPartition(topic.name or "", part.partition): nodes[part.leader_id]
            for topic in reply.topics
            for part in topic.partitions
            if part.leader_id in nodes
        }
        return cast(MetadataResponse, reply)

    def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Look up offsets by timestamp, one request per leader; omits deleted partitions."""

        def attempt() -> dict[TopicPartition, int]:
            if not times.keys() <= self._leaders.keys():
                self._read_metadata()
            found: dict[TopicPartition, int] = {}
            for address in sorted({self._leaders[tp] for tp in times if tp in self._leaders}):
                led = {tp: time for tp, time in times.items() if self._leaders.get(tp) == address}
                request = _offsets_request(led, self._options.committed)
                reply = self._ask(address, request, ListOffsetsResponse)
                for topic in reply.topics:
                    for part in topic.partitions:
                        self._note_offset(TopicPartition(topic.name, part.partition), part, found)
            return found

        return cast("dict[TopicPartition, int]", self._retried(attempt))

    def _note_offset(self, tp: TopicPartition, part: Any, found: dict[TopicPartition, int]) -> None:
        if part.error_code in _MOVED:
            self._leaders.pop(tp, None)
        if part.error_code != _UNKNOWN_TOPIC:
            _check(part.error_code, str(tp))
            found[tp] = part.offset

    def _led(self, tp: TopicPartition, ask: Any) -> Any:
        """Send a request to the partition's leader; looks the leader up again after it moved."""

        def attempt() -> Any:
            if tp not in self._leaders:
                self._read_metadata()
            if tp not in self._leaders:
                raise UnknownTopic(f"there is no {tp} at {self._options.servers}")
            answer = ask(self._leaders[tp])
            if answer.error_code in _MOVED:
                self._leaders.pop(tp, None)
            _check(answer.error_code, str(tp))
            return answer

        return self._retried(attempt)

    def _retried(self, attempt: Any) -> Any:
        """Retry after a pause while the broker is unavailable; other errors propagate."""
        for left in range(self._options.offset_retries, -1, -1):
            try:
                return attempt()
            except UnavailableError:
                if left == 0:
                    raise
                time.sleep(self._options.offset_retry_interval_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _ask_any(self, request: tuple[Any, ...], reply_type: type[Reply]) -> Reply:
        """Send a request to the first bootstrap server that answers."""
        for address in self._bootstrap[:-1]:
            try:
                return self._ask(address, request, reply_type)
            except UnavailableError:
                continue
        return self._ask(self._bootstrap[-1], request, reply_type)

    def _ask(self, address: Address, request: tuple[Any, ...], reply_type: type[Reply]) -> Reply:
        """Send one request and return the response."""
        try:
            return self._connection(address).ask(request, reply_type)
        except OSError as error:
            raise UnavailableError(
                f"the broker at {address[0]}:{address[1]} does not answer: {error}; is it running, "
                "and is kafka.bootstrap.servers right?"
            ) from None

    def _connection(self, address: Address) -> ClientConnection:
        if address not in self._connections:
            self._connections[address] = ClientConnection(
                address,
                client_id=CLIENT_ID,
                timeout_s=self._options.poll_timeout_ms / 1000,
                versions=_VERSIONS,
            )
        return self._connections[address]


def _offsets_request(times: Mapping[TopicPartition, int], committed: bool) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, time_ms in times.items():
        asked = ListOffsetsPartition(tp.partition, timestamp_ms=time_ms)
        topics.setdefault(tp.topic, []).append(asked)
    asked_topics = [ListOffsetsTopic(name, of) for name, of in topics.items()]
    return ListOffsetsRequest(-1, int(committed), asked_topics)


def _only(reply: Any) -> Any:
    """The only partition in the response."""
    return reply.topics[0].partitions[0]


def _check(error_code: int, what: str) -> None:
    if error_code == _UNKNOWN_TOPIC:
        raise UnknownTopic(f"{what}: unknown topic or partition")
    if error_code == _OUT_OF_RANGE:
        raise OffsetOutOfRange(what)
    if error_code == DamagedRecords.code:
        raise DamagedRecords(
            f"{what}: records there contradict their checksums; `cordwood topic describe` names "
            "them; restore the segment from a copy, or read from an offset behind them"
        )
    if error_code:
        raise UnavailableError(f"{what}: the broker answered with error {error_code}")
