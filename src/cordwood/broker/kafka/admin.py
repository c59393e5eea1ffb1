"""Topic administration: create and delete topics, add partitions, delete records, list log dirs."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from cordwood.broker.cluster_view import ClusterView
from cordwood.broker.dynamic_settings import DynamicSettings
from cordwood.broker.kafka.described_settings import described_topic
from cordwood.broker.session import Session
from cordwood.broker.time_slices import RequestSlices
from cordwood.broker.topics import CREATED_AT_ONCE, TopicService
from cordwood.codes import Code
from cordwood.config import topic_config
from cordwood.errors import (
    CordwoodError,
    InvalidAssignment,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplication,
    OffsetOutOfRange,
    PolicyViolation,
    RequestError,
)
from cordwood.log.lifecycle.store import Store
from cordwood.log.write.partition import Partition
from cordwood.plural import plural
from cordwood.protocol.kafka.messages.topics import (
    CreatedTopic,
    CreatedTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedRecordsPartition,
    DeletedRecordsTopic,
    DeletedTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    GrownTopic,
    GrowTopic,
    LogDir,
    LogDirPartition,
    LogDirTopic,
)
from cordwood.protocol.kafka.primitives import NO_ID

_DEFAULT: Final = -1  # as a partition count or replication factor: the broker's default
_UP_TO_END: Final = -1  # as an offset: the high watermark
_NO_OFFSET: Final = -1
_DELETE_BY_ID: Final = 6  # DeleteTopics may name a topic by its id from this version on


TURN_CREATIONS: Final = 10  # each validates its settings and returns all of them


class KafkaAdmin:
    """The handlers of five APIs."""

    def __init__(
        self,
        settings: DynamicSettings,
        store: Store,
        topics: TopicService,
        cluster: ClusterView,
        *,
        created_max: int = 10_000,
    ) -> None:
        """``created_max`` limits the topics of one request, as in Kafka's controller."""
        self._created_max = created_max
        self._cluster = cluster
        self._settings = settings
        self._store = store
        self._topics = topics
        self._described_last: tuple[object, list[CreatedTopicConfig]] | None = None

    # --- create -----------------------------------------------------------------------------

    async def create_topics(
        self, request: CreateTopicsRequest, _version: int, _session: Session
    ) -> CreateTopicsResponse:
        """Create topics, each completely or not at all, or only validate the request."""
        if len(request.topics) > self._created_max:
            refused = await RequestSlices().map(self._refuse_many, request.topics)
            return CreateTopicsResponse(topics=refused)
        turns = RequestSlices(TURN_CREATIONS)
        counts = await _count_names(request.topics)
        created: list[CreatedTopic] = []
        for start in range(0, len(request.topics), CREATED_AT_ONCE):
            creations = [
                asyncio.ensure_future(
                    self._create(
                        topic,
                        is_repeated=counts[topic.name] > 1,
                        validate_only=request.validate_only,
                    )
                )
                async for topic in turns.of(request.topics[start : start + CREATED_AT_ONCE])
            ]
            created += await asyncio.gather(*creations)
        return CreateTopicsResponse(topics=created)

    def _refuse_many(self, topic: CreateTopic) -> CreatedTopic:
        text = f"more than {self._created_max} topics in one request; split the request"
        return CreatedTopic(topic.name, error_code=PolicyViolation.code, error_message=text)

    async def _create(
        self, wanted: CreateTopic, *, is_repeated: bool, validate_only: bool
    ) -> CreatedTopic:
        try:
            if is_repeated:
                raise RequestError(f"topic {wanted.name} is named twice; name it once")
            partitions = self._partition_count(wanted)
            self._topics.check_settings(wanted.name, _settings_of(wanted))
            topic_id = NO_ID
            if validate_only:
                self._store.check_new_topic(wanted.name, partitions)
            else:
                created = await self._topics.create(wanted.name, partitions, _settings_of(wanted))
                topic_id = UUID(created.id)
        except CordwoodError as error:
            return CreatedTopic(wanted.name, error_code=error.code, error_message=str(error))
        return CreatedTopic(
            wanted.name,
            topic_id,
            num_partitions=partitions,
            replication_factor=self._cluster.replication_factor,
            configs=self._described(_settings_of(wanted)),
        )

    def _described(self, settings: dict[str, str]) -> Sequence[CreatedTopicConfig]:
        """Describe a new topic's settings; cached, as most topics of a request share theirs."""
        key = settings, self._settings.current
        if self._described_last is None or self._described_last[0] != key:
            config = topic_config(self._settings.current.topic_defaults, settings)
            described = [
                CreatedTopicConfig(each.name, each.value, config_source=each.config_source)
                for each in described_topic(config, settings, self._settings)
            ]
            self._described_last = key, described
        return self._described_last[1]

    def _partition_count(self, wanted: CreateTopic) -> int:
        if wanted.assignments:
            if (wanted.num_partitions, wanted.replication_factor) != (_DEFAULT, _DEFAULT):
                raise RequestError(
                    "a manual assignment already determines the partition count and the "
                    "replication factor; send -1 for both"
                )
            numbers = sorted(each.partition for each in wanted.assignments)
            if numbers != list(range(len(numbers))):
                raise InvalidAssignment(
                    f"the assignment names partitions {numbers}; number them from 0 without gaps"
                )
            self._cluster.check_assigned(each.broker_ids for each in wanted.assignments)
            return len(numbers)
        if wanted.replication_factor not in (_DEFAULT, self._cluster.replication_factor):
            raise InvalidReplication(
                f"{wanted.replication_factor} replicas were requested, but there is only one "
                "broker; request 1, or -1 for the default"
            )
        if wanted.num_partitions == _DEFAULT:
            return self._settings.current.num_partitions
        return wanted.num_partitions

    # --- delete -----------------------------------------------------------------------------

    async def delete_topics(
        self, request: DeleteTopicsRequest, version: int, _session: Session
    ) -> DeleteTopicsResponse:
        """Delete topics with their records, cursors and settings."""
        topics: Sequence[DeleteTopic] = request.topics
        if version < _DELETE_BY_ID:
            topics = [DeleteTopic(name) for name in request.topic_names]
        return DeleteTopicsResponse(
            topics=[await self._delete(wanted) async for wanted in RequestSlices().of(topics)]
        )

    async def _delete(self, wanted: DeleteTopic) -> DeletedTopic:
        name, topic_id = wanted
        try:
            if name is None:
                name = self._topics.get_by_id(topic_id).name
            topic_id = UUID(self._topics.get(name).id)
            await self._topics.delete(name)
        except CordwoodError as error:
            return DeletedTopic(name, topic_id, error.code, str(error))
        return DeletedTopic(name, topic_id)

    # --- grow -------------------------------------------------------------------------------

    async def create_partitions(
        self, request: CreatePartitionsRequest, _version: int, _session: Session
    ) -> CreatePartitionsResponse:
        """Add partitions to topics, or only validate the request."""
        counts = await _count_names(request.topics)
        results = []
        async for wanted in RequestSlices().of(request.topics):
            try:
                if counts[wanted.name] > 1:
                    raise RequestError(f"topic {wanted.name} is named twice; name it once")
                self._check_growth(wanted)
                if not request.validate_only:
                    await self._topics.add_partitions(wanted.name, wanted.partition_count)
            except CordwoodError as error:
                results.append(GrownTopic(wanted.name, error.code, str(error)))
            else:
                results.append(GrownTopic(wanted.name, Code.NONE))
        return CreatePartitionsResponse(results=results)

    def _check_growth(self, wanted: GrowTopic) -> None:
        before = self._topics.get(wanted.name).partition_count
        if wanted.partition_count <= before:
            raise InvalidPartitions(
                f"topic {wanted.name} has {plural(before, 'partition')}; request more than that, "
                f"not "
                f"{wanted.partition_count}"
            )
        if wanted.assignments is not None:
            added = wanted.partition_count - before
            if len(wanted.assignments) != added:
                raise InvalidAssignment(
                    f"the request adds {plural(added, 'partition')} but assigns "
                    f"{len(wanted.assignments)}"
                )
            self._cluster.check_assigned(each.broker_ids for each in wanted.assignments)

    # --- trim -------------------------------------------------------------------------------

    async def delete_records(
        self, request: DeleteRecordsRequest, _version: int, _session: Session
    ) -> DeleteRecordsResponse:
        """Move log start offsets forward; durable before the reply."""
        topics = await RequestSlices().await_topics(request.topics, DeletedRecordsTopic, self._trim)
        return DeleteRecordsResponse(topics=topics)

    async def _trim(self, topic: str, wanted: DeleteRecordsPartition) -> DeletedRecordsPartition:
        try:
            partition = await self._topics.open_partition(topic, wanted.partition)
            offset = _trim_offset(partition, wanted.offset)
            start = await self._topics.on_writer(
                lambda: self._store.segments.advance_start(partition.tp, offset)
            )
        except CordwoodError as error:
            return DeletedRecordsPartition(wanted.partition, _NO_OFFSET, error.code)
        return DeletedRecordsPartition(wanted.partition, start, Code.NONE)

    # --- log directories --------------------------------------------------------------------

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, _version: int, _session: Session
    ) -> DescribeLogDirsResponse:
        """Describe the data directory, the partition sizes in it and its disk space."""
        turns = RequestSlices()
        asked = {
            topic.name: set(topic.partitions) async for topic in turns.of(request.topics or ())
        }
        names = await turns.sort(list(asked if request.topics is not None else self._topics.all()))
        topics = []
        async for name in turns.of(names):
            if name in self._topics.all():
                await self._topics.open_topic(name)
            sizes = [
                LogDirPartition(partition.tp.partition, partition.size_bytes)
                async for partition in turns.of(self._store.partitions(name))
                if not asked or partition.tp.partition in asked[name]
            ]
            if sizes:
                topics.append(LogDirTopic(name, sizes))
        loop = asyncio.get_running_loop()
        disk = await loop.run_in_executor(None, shutil.disk_usage, self._store.data)
        path = str(self._store.data.absolute())
        return DescribeLogDirsResponse(
            results=[LogDir(Code.NONE, path, topics, disk.total, disk.free)]
        )


async def _count_names(topics: Sequence[CreateTopic | GrowTopic]) -> Counter[str]:
    """Count how often a request names each topic."""
    counts: Counter[str] = Counter()
    async for topic in RequestSlices().of(topics):
        counts[topic.name] += 1
    return counts


def _settings_of(wanted: CreateTopic) -> dict[str, str]:
    """Return the settings that a new topic sets itself; raises ``InvalidConfig``."""
    settings: dict[str, str] = {}
    for each in wanted.configs:
        if each.value is None:
            raise InvalidConfig(f"{each.name} has no value; leave it out to take the default")
        settings[each.name] = each.value
    return settings


def _trim_offset(partition: Partition, wanted: int) -> int:
    """Return the new log start; an offset below the current start changes nothing."""
    if partition.config.cleanup_policy == {"compact"}:
        raise PolicyViolation(
            f"topic {partition.tp.topic} is only compacted, so the newest record of each key is "
            "kept; write tombstones, or add delete to its cleanup.policy"
        )
    end = partition.high_watermark
    offset = end if wanted == _UP_TO_END else wanted
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(
            f"{partition.tp}: cannot delete records before offset {wanted}; the log ends at {end}"
        )
    return max(offset, partition.log_start_offset)
