"""The topics that are served: settings and partitions, open or offline. Lookups on any thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, PartitionOffline, UnknownTopic, UnknownTopicId
from cordwood.log.health.registry import Condition, HealthRegistry
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import Topic
from cordwood.model import TopicPartition

logger = logging.getLogger("cordwood.log")


class NewTopic(NamedTuple):
    """A topic to create; settings have dotted names."""

    name: str
    partitions: int
    config: Mapping[str, object]


class LiveTopic:
    """A topic and its partitions, open or offline."""

    def __init__(self, topic: Topic, config: TopicConfig) -> None:
        """Create the topic without partitions; the store adds them."""
        self.name = topic.name
        self.id = topic.id
        self.config = config
        self.overrides: Mapping[str, str] = topic.config  # what the topic sets itself
        self.slots: list[Partition | PartitionOffline] = []

    @property
    def partition_count(self) -> int:
        """How many partitions it has, offline ones included."""
        return len(self.slots)

    def partition(self, number: int) -> Partition:
        """One partition; raises ``UnknownTopic`` or ``PartitionOffline``."""
        if not 0 <= number < len(self.slots):
            raise UnknownTopic(
                f"topic {self.name} has no partition {number}, only 0 to {len(self.slots) - 1}"
            )
        slot = self.slots[number]
        if isinstance(slot, PartitionOffline):
            raise PartitionOffline(*slot.args)
        return slot

    def held(self) -> list[Partition]:
        """The partitions that are not offline, whether opened yet or not."""
        return [slot for slot in self.slots if isinstance(slot, Partition)]

    def online(self) -> list[Partition]:
        """The partitions that are open and not offline."""
        return [slot for slot in self.slots if isinstance(slot, Partition) and slot.is_open]


class LiveTopics:
    """All topics that are served, and the health of their partitions."""

    def __init__(self) -> None:
        """Start without topics."""
        self.topics: dict[str, LiveTopic] = {}
        self._by_id: dict[UUID, LiveTopic] = {}
        self.topics_version = 0  # another number after every change of a topic's name, id or size
        self.health = HealthRegistry()

    def topic(self, name: str) -> LiveTopic:
        """The topic with this name; raises ``UnknownTopic``."""
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(
                f"there is no topic {name}; `cordwood topic list` shows all topics"
            ) from None

    def topic_by_id(self, topic_id: UUID) -> LiveTopic:
        """The topic with this id; raises ``UnknownTopicId``."""
        try:
            return self._by_id[topic_id]
        except KeyError:
            raise UnknownTopicId(
                f"no topic has the id {topic_id}; it was deleted, or this is another broker's id"
            ) from None

    def _serve(self, topic: LiveTopic) -> None:
        """Serve a topic from now on, by its name and by its id."""
        self.topics[topic.name] = topic
        self.topics_version += 1
        self._by_id[UUID(topic.id)] = topic

    def _withdraw(self, name: str) -> None:
        """Serve a topic no longer; a new one with its name will have another id."""
        del self._by_id[UUID(self.topics.pop(name).id)]
        self.topics_version += 1

    def _withdraw_all(self) -> None:
        self.topics.clear()
        self._by_id.clear()

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition; raises ``UnknownTopic`` or ``PartitionOffline``."""
        return self.topic(tp.topic).partition(tp.partition)

    def partitions(self, name: str) -> list[Partition]:
        """The open partitions of a topic; empty if there is no such topic."""
        topic = self.topics.get(name)
        return topic.online() if topic else []

    def unopened(self) -> list[Partition]:
        """Every partition whose files have not been opened yet."""
        return [each for t in list(self.topics.values()) for each in t.held() if not each.is_open]

    @property
    def offline(self) -> dict[TopicPartition, PartitionOffline]:
        """Every partition that is not served, with the reason."""
        return {
            TopicPartition(topic.name, number): slot
            for topic in list(self.topics.values())
            for number, slot in enumerate(topic.slots)
            if isinstance(slot, PartitionOffline)
        }

    def guard(self, partition: Partition, condition: Condition) -> AbstractContextManager[None]:
        """Isolate one partition's errors in a round over many; see ``HealthRegistry.guard``."""

        def is_expected() -> bool:
            return bool(partition.offline_reason) or not self.is_live(partition)

        return self.health.guard(partition.tp, condition, is_expected)

    def is_live(self, partition: Partition) -> bool:
        """Whether this very partition is being served: neither deleted nor taken offline."""
        topic = self.topics.get(partition.tp.topic)
        return topic is not None and partition in topic.slots

    def take_offline(self, partition: Partition, error: PartitionOffline) -> None:
        """Stop serving a partition until the next start."""
        self.topic(partition.tp.topic).slots[partition.tp.partition] = error
        self.health.report(partition.tp, Condition.OFFLINE, str(error))
        attempt("partition.close_failed", str(partition.tp), partial(partition.abandon, str(error)))


def attempt(event: str, name: str, act: Callable[[], None]) -> None:
    """Try one of several actions; a failure is logged and does not stop the others."""
    try:
        act()
    except (CordwoodError, OSError) as error:
        logger.error("%s name=%s error=%s", event, name, error)  # noqa: TRY400
