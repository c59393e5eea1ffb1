"""Where a query's bytes come from: one seam, two ways with equal results.

``directory`` reads segment files where they can be reached, ``kafka`` asks over the Kafka wire. The
driver plans through a ``Log`` and executors read through one; nothing else knows which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Protocol

from cordwood.errors import NotDataDirectory, UnavailableError
from cordwood.model import TopicPartition
from cordwood.pipeline.directory import DataDirectory
from cordwood.pipeline.kafka import KafkaLog
from cordwood.pipeline.offsets import Bounds, Range
from cordwood.pipeline.options import SourceOptions
from cordwood.pipeline.segments import Chunk, Start
from cordwood.pipeline.splits import Piece


class Log(Protocol):
    """The readable topics, whoever holds their bytes."""

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Every topic and its partitions."""
        ...

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """What can be read of each now; a partition that is gone is left out."""
        ...

    def find_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older; None when all are."""
        ...

    def pieces(self, whole: Range, split_bytes: int) -> Sequence[Piece]:
        """Where the range may be cut for tasks of about that size; covers it without holes."""
        ...

    def hint(self, tp: TopicPartition, offset: int) -> Start | None:
        """Where a task may find the offset without looking for it."""
        ...

    def chunks(self, whole: Range, hint: Start | None) -> Iterator[Chunk]:
        """The range's batches, in order."""
        ...

    def close(self) -> None:
        """Let go of sockets and files."""
        ...


def open_log(options: SourceOptions) -> closing[Log]:
    """The files if ``path`` is given and can be reached from here, else the broker."""
    return closing(reach_log(options))


def reach_log(options: SourceOptions) -> Log:
    """As ``open_log``, for whoever closes it later."""
    if options.path is not None:
        try:
            return DataDirectory(
                options.path,
                fail_on_data_loss=options.fail_on_data_loss,
                committed=options.committed,
            )
        except (NotDataDirectory, UnavailableError):
            if options.servers is None:
                raise
    return KafkaLog(options)
