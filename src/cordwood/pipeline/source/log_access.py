"""Where a query's bytes come from: one seam, two ways with equal results.

``directory`` reads segment files where they can be reached, ``kafka`` asks over the Kafka wire. The
driver plans through a ``Log`` and executors read through one; nothing else knows which it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, Protocol

from cordwood.errors import NotDataDirectory, UnavailableError
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.source.data_directory import DataDirectory
from cordwood.pipeline.source.identity import check_data_id, is_proved
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.offsets import Bounds, Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.segment_files import Chunk, StartHint
from cordwood.pipeline.source.splits import SplitPiece

_log: Final = logging.getLogger("cordwood.source")


class Log(Protocol):
    """The readable topics, whoever holds their bytes."""

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Every topic and its partitions."""
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids these topics have now; one that is gone, or tells none, is left out."""
        ...

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """What can be read of each now; a partition that is gone is left out."""
        ...

    def find_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older; None when all are."""
        ...

    def pieces(self, whole: Range, split_bytes: int) -> Sequence[SplitPiece]:
        """Where the range may be cut for tasks of about that size; covers it without holes."""
        ...

    def hint(self, tp: TopicPartition, offset: int) -> StartHint | None:
        """Where a task may find the offset without looking for it."""
        ...

    def chunks(self, whole: Range, hint: StartHint | None) -> Iterator[Chunk]:
        """The range's batches, in order."""
        ...

    def close(self) -> None:
        """Let go of sockets and files."""
        ...


def open_log(options: SourceOptions) -> closing[Log]:
    """The files where ``path`` leads to the broker's directory from here, else the broker.

    Without a broker, the files or nothing: and only those the query was planned with.
    """
    return closing(reach_log(options))


def reach_log(options: SourceOptions) -> Log:
    """As ``open_log``, for whoever closes it later."""
    if options.path is not None and options.servers is None:
        check_data_id(options.path, options.data_id)
        return _open_files(options, options.path)
    if options.path is not None and is_proved(options.path, BrokerAddress(servers=options.servers)):
        try:
            return _open_files(options, options.path)
        except (NotDataDirectory, UnavailableError) as error:
            _log.warning("source.path_unreadable path=%s error=%s", options.path, error)
    return KafkaLog(options)


def _open_files(options: SourceOptions, path: str) -> DataDirectory:
    return DataDirectory(
        path, fail_on_data_loss=options.fail_on_data_loss, committed=options.committed
    )
