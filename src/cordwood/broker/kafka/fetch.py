"""Fetch: returns whole batches from an offset on, after waiting for enough bytes or a timeout.

Incremental fetch sessions are declined (session id 0): a full request costs one dictionary lookup
per topic. A request that continues a session, which only another broker can have opened, is told
that there is none, and the client fetches in full. Topics named by id are looked up again at every
read, so a topic that is deleted and created again while a fetch waits is not mistaken for the old
one. What is read, and where, is planned and carried out in ``fetch_plan``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import islice
from typing import Final

from cordwood.broker.append_notifier import AppendNotifier
from cordwood.broker.kafka.fetch_plan import FetchRun, Planned, plan_partition
from cordwood.broker.kafka.unsent_replies import UnsentReplies
from cordwood.broker.session import Session
from cordwood.broker.time_slices import TURN_ITEMS, RequestSlices
from cordwood.broker.topics import TopicService
from cordwood.clock import Clock
from cordwood.codes import Code
from cordwood.errors import CordwoodError, UnknownTopicId
from cordwood.model import TopicPartition
from cordwood.protocol.kafka.messages.fetch import (
    TOPIC_ID_VERSION,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
)

READ_COMMITTED: Final = 1
WAIT_S_MAX: Final = 60.0
WATCHED_MAX: Final = 2_000  # a waiting request with more partitions is not woken by appends
UNWATCHED_WAIT_S: Final = 0.5


class KafkaFetch:
    """The handler of one API."""

    def __init__(
        self,
        topics: TopicService,
        notifier: AppendNotifier,
        clock: Clock,
        outgoing: UnsentReplies | None = None,
    ) -> None:
        """``outgoing`` knows how much of earlier replies is still unsent."""
        self._topics = topics
        self._outgoing = outgoing or UnsentReplies()
        self._notifier = notifier
        self._clock = clock

    def fetch(
        self, request: FetchRequest, version: int, _session: Session
    ) -> Awaitable[FetchResponse]:
        """Read; if there is too little, wait for more and read again, until ``max_wait_ms``."""
        if request.session_epoch > 0:
            return _answered(FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND))
        plan = list(islice(self._plan(request, version), TURN_ITEMS))
        if len(plan) == TURN_ITEMS:
            return self._fetch_slowly(request, version, self._read(request, version))
        run = FetchRun(request, plan, self._outgoing.share_bytes)
        if not run.advance() or not self._is_enough(run, request):
            return self._fetch_slowly(request, version, run.finish())
        return _answered(run.response())

    def _plan(self, request: FetchRequest, version: int) -> Iterator[Planned]:
        topics, is_by_id = self._topics, version >= TOPIC_ID_VERSION
        is_committed = request.isolation_level == READ_COMMITTED
        for topic in request.topics:
            for part in topic.partitions:
                try:
                    live = topics.get_by_id(topic.topic_id) if is_by_id else topics.get(topic.name)
                    partition = live.partition(part.partition)
                except CordwoodError as error:
                    yield FetchedPartition(part.partition, error.code, high_watermark=-1)
                else:
                    yield plan_partition(partition, part, is_committed=is_committed)

    def _is_enough(self, run: FetchRun, request: FetchRequest) -> bool:
        return (
            run.size_bytes >= request.min_bytes
            or run.has_error
            or request.max_wait_ms <= 0
            or self._notifier.is_draining
        )

    async def _fetch_slowly(
        self, request: FetchRequest, version: int, reading: Awaitable[FetchRun]
    ) -> FetchResponse:
        """Answer a request that has many partitions, or that waits for the disk or for records."""
        wait_s = min(request.max_wait_ms / 1000, WAIT_S_MAX)
        deadline = self._clock.monotonic() + wait_s
        run = await reading
        if self._is_enough(run, request):
            return run.response()
        if sum(len(topic.partitions) for topic in request.topics) > WATCHED_MAX:
            # Too many partitions to be woken by each of them: read again once, after a pause.
            await asyncio.sleep(min(wait_s, UNWATCHED_WAIT_S))
            return (await self._read(request, version)).response()
        wanted = self._partitions(request, version)
        while True:
            published = self._notifier.expect(wanted)
            try:
                run = await self._read(request, version)
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0 or self._is_enough(run, request):
                    return run.response()
                await self._notifier.wait(published, left_s)
            finally:
                self._notifier.forget(published, wanted)

    def _partitions(self, request: FetchRequest, version: int) -> list[TopicPartition]:
        """Return the partitions of a request whose appends to wait for."""
        wanted: list[TopicPartition] = []
        for topic in request.topics:
            name = topic.name
            if version >= TOPIC_ID_VERSION:
                try:
                    name = self._topics.get_by_id(topic.topic_id).name
                except UnknownTopicId:  # deleted meanwhile: the next read reports it
                    continue
            wanted += [TopicPartition(name, part.partition) for part in topic.partitions]
        return wanted

    async def _read(self, request: FetchRequest, version: int) -> FetchRun:
        plan = [planned async for planned in RequestSlices().of(self._plan(request, version))]
        return await FetchRun(request, plan, self._outgoing.share_bytes).finish()


def _answered(response: FetchResponse) -> asyncio.Future[FetchResponse]:
    answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
    answer.set_result(response)
    return answer
