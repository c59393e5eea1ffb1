"""A topic in the store: its settings and its partitions, open or offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cordwood.config import TopicConfig
from cordwood.errors import PartitionOffline, UnknownTopic
from cordwood.log.write.partition import Partition
from cordwood.metadata.keys import Topic


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
