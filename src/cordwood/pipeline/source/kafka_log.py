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

from cordwood.address import Address, parse_address
from cordwood.batch.header import Buffer
from cordwood.client.kafka import EARLIEST, LATEST, KafkaClient
from cordwood.client.kafka_connection import Reply
from cordwood.config import MIB
from cordwood.errors import (
    CorruptBatch,
    CorruptionError,
    DamagedRecords,
    DataLoss,
    OffsetOutOfRange,
    UnavailableError,
    UnknownTopic,
)
from cordwood.log.read.whole_batches import BatchRun, take_batches
from cordwood.model import TopicPartition
from cordwood.pipeline.source.offsets import Bounds, Offsets, Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.segment_files import Chunk, StartHint
from cordwood.pipeline.source.splits import SplitPiece
from cordwood.pipeline.source.transactions import end_with_markers
from cordwood.protocol.kafka.messages.fetch import (
    FetchedPartition,
)
from cordwood.protocol.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from cordwood.protocol.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from cordwood.protocol.kafka.primitives import NO_ID

CLIENT_ID: Final = "cordwood-spark"
FETCH_BYTES: Final = 8 * MIB
RECORD_BYTES_GUESS: Final = 128  # for planning tasks; the Kafka protocol does not report sizes
_OUT_OF_RANGE: Final = 1
_UNKNOWN_TOPIC: Final = 3
_MOVED: Final = frozenset({5, 6, 14, 15, 16})  # leader or coordinator is elsewhere or not ready


class KafkaLog:
    """A ``Log`` that reads from brokers; not thread-safe, use one per thread."""

    def __init__(self, options: SourceOptions) -> None:
        """Connects on the first request."""
        assert options.servers is not None, "options ask for a path or a broker"
        self._bootstrap = [parse_address(server) for server in options.servers.split(",")]
        self._options = options
        self._clients: dict[Address, KafkaClient] = {}
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
        starts = self._list_offsets(dict.fromkeys(tps, EARLIEST))
        ends = self._list_offsets(dict.fromkeys(starts, LATEST))
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
                fetched = self._fetch(whole.tp, offset)
            except OffsetOutOfRange:
                offset = self._after_loss(whole, offset)
                continue
            run = self._whole_batches(whole, fetched.records)
            if run is not None:
                begun = [
                    (a.producer_id, a.first_offset) for a in fetched.aborted_transactions or ()
                ]
                aborted = end_with_markers(run.data, begun)
                yield Chunk(run.data, offset, run.next_offset, aborted)
                offset = max(offset + 1, run.next_offset)
            elif fetched.records or fetched.high_watermark >= whole.end:
                return  # only a gap is left before the end
            elif time.monotonic() > wait_until:
                raise UnavailableError(
                    f"{whole.tp} ends at {fetched.high_watermark}: offsets up to {whole.end} did "
                    "not arrive within kafkaConsumer.pollTimeoutMs"
                )

    @staticmethod
    def _whole_batches(whole: Range, records: Buffer | None) -> BatchRun | None:
        """The fetched batches that begin inside the range; a response may end inside a batch."""
        if not records:
            return None
        try:
            return take_batches(memoryview(records), whole.end, verify=False)
        except CorruptBatch as error:
            raise CorruptionError(f"{whole.tp}: the broker sent no record batch: {error}") from None

    def _fetch(self, tp: TopicPartition, offset: int) -> FetchedPartition:
        def fetch(client: KafkaClient) -> FetchedPartition:
            is_committed = self._options.committed
            return client.fetch_each(
                {tp: offset}, max_wait_ms=500, committed=is_committed, partition_bytes=FETCH_BYTES
            )[tp]

        return cast(FetchedPartition, self._led(tp, fetch))

    def _after_loss(self, whole: Range, offset: int) -> int:
        """Raise, or continue at the current log start."""
        start = self._list_offsets({whole.tp: EARLIEST})[whole.tp]
        if start <= offset:
            raise UnavailableError(f"{whole.tp} no longer reaches offset {offset}")
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"offsets {offset} to {min(start, whole.end)} of {whole.tp} were reclaimed before "
                "the query read them; set failOnDataLoss to false to continue without them, and "
                "commitGroup to make RECLAIM wait"
            )
        return start

    # --- cursors -----------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for the group, like a consumer that is not a member of it."""

        def attempt() -> None:
            reply = self._ask_any(FindCoordinatorRequest(group), FindCoordinatorResponse)
            _check(reply.error_code, f"coordinator of {group}")
            client = self._client(Address(reply.host, reply.port))
            for tp, part in client.commit_each(group, dict(sorted(offsets.items()))).items():
                _check(part.error_code, f"commit of {tp} by {group}")

        self._retried(attempt)

    def close(self) -> None:
        """Close every connection."""
        while self._clients:
            self._clients.popitem()[1].close()

    # --- internal ----------------------------------------------------------------------------

    def _read_metadata(self) -> MetadataResponse:
        request = MetadataRequest(None, allow_auto_topic_creation=False)
        reply = self._retried(lambda: self._ask_any(request, MetadataResponse))
        nodes = {broker.node_id: Address(broker.host, broker.port) for broker in reply.brokers}
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
            offsets: dict[TopicPartition, int] = {}
            for address in sorted({self._leaders[tp] for tp in times if tp in self._leaders}):
                led = {tp: time for tp, time in times.items() if self._leaders.get(tp) == address}
                client = self._client(address)
                listed = client.offset_each(led, committed=self._options.committed)
                for tp, part in listed.items():
                    self._add_offset(tp, part, offsets)
            return offsets

        return cast("dict[TopicPartition, int]", self._retried(attempt))

    def _add_offset(
        self, tp: TopicPartition, part: Any, offsets: dict[TopicPartition, int]
    ) -> None:
        if part.error_code in _MOVED:
            self._leaders.pop(tp, None)
        if part.error_code != _UNKNOWN_TOPIC:
            _check(part.error_code, str(tp))
            offsets[tp] = part.offset

    def _led(self, tp: TopicPartition, ask: Any) -> Any:
        """Send a request to the partition's leader; looks the leader up again after it moved."""

        def attempt() -> Any:
            if tp not in self._leaders:
                self._read_metadata()
            if tp not in self._leaders:
                raise UnknownTopic(f"there is no {tp} at {self._options.servers}")
            answer = ask(self._client(self._leaders[tp]))
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
                return self._client(address).ask(request, reply_type)
            except UnavailableError:
                continue
        return self._client(self._bootstrap[-1]).ask(request, reply_type)

    def _client(self, address: Address) -> KafkaClient:
        if address not in self._clients:
            self._clients[address] = KafkaClient(
                address,
                client_id=CLIENT_ID,
                timeout_s=self._options.poll_timeout_ms / 1000,
                advice="is it running, and is kafka.bootstrap.servers right?",
                tls=self._options.tls,
            )
        return self._clients[address]


def _check(error_code: int, what: str) -> None:
    if error_code == _UNKNOWN_TOPIC:
        raise UnknownTopic(f"{what}: unknown topic or partition")
    if error_code == _OUT_OF_RANGE:
        raise OffsetOutOfRange(what)
    if error_code == DamagedRecords.code:
        raise DamagedRecords(
            f"{what}: records do not match their checksums; `cordwood topic describe` lists them; "
            "restore the segment from a copy, or read from an offset after them"
        )
    if error_code:
        raise UnavailableError(f"{what}: the broker replied with error {error_code}")
