"""One offset that a group member or a transaction commits; a value."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.model import TopicPartition

NO_LEADER_EPOCH = -1


class PartitionOffset(NamedTuple):
    """The next offset a group will read from one partition, with the client's metadata."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""

    def is_metadata_larger(self, bytes_max: int) -> bool:
        """Whether the metadata exceeds the broker's limit (``offset.metadata.max.bytes``)."""
        return len(self.metadata.encode()) > bytes_max
