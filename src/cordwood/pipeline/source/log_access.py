"""Choose how a query reads a topic: from segment files, or over the Kafka protocol.

``SegmentFileLog`` reads segment files where this machine can reach them. ``KafkaLog`` fetches from
the broker. Both implement ``Log`` and return equal results. The driver plans through a ``Log`` and
executors read through one; no other code depends on which implementation is in use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, Protocol

from cordwood.errors import NotDataDirectory, UnavailableError
from cordwood.model import TopicPartition
from cordwood.pipeline.runtime.broker_api import BrokerAddress
from cordwood.pipeline.source.data_directory import SegmentFileLog
from cordwood.pipeline.source.identity import check_data_id, is_proved
from cordwood.pipeline.source.kafka_log import KafkaLog
from cordwood.pipeline.source.offsets import Bounds, Range
from cordwood.pipeline.source.options import SourceOptions
from cordwood.pipeline.source.segment_files import Chunk, StartHint
from cordwood.pipeline.source.splits import SplitPiece

_log: Final = logging.getLogger("cordwood.source")


class Log(Protocol):
    """Read access to topics, independent of where their bytes are stored."""

    def topics(self) -> Mapping[str, Sequence[int]]:
        """Every topic and its partitions."""
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The current ids of these topics; omits topics that are deleted or have no known id."""
        ...

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The currently readable offsets of each partition; omits deleted partitions."""
        ...

    def find_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp at or after ``timestamp_ms``; None if there is none."""
        ...

    def pieces(self, whole: Range, split_bytes: int) -> Sequence[SplitPiece]:
        """Cut the range into pieces of about ``split_bytes``; the pieces cover it without gaps."""
        ...

    def hint(self, tp: TopicPartition, offset: int) -> StartHint | None:
        """A file position from which a task can read the offset without searching for it."""
        ...

    def chunks(self, whole: Range, hint: StartHint | None) -> Iterator[Chunk]:
        """The range's batches, in order."""
        ...

    def close(self) -> None:
        """Close sockets and files."""
        ...


def open_log(options: SourceOptions) -> closing[Log]:
    """Open the segment files if ``path`` is the broker's data directory here, else the broker.

    Without a broker address, only the files can be read, and only if they belong to the data
    directory that the query was planned with.
    """
    return closing(reach_log(options))


def reach_log(options: SourceOptions) -> Log:
    """The same as ``open_log``, but the caller closes the result."""
    if options.path is not None and options.servers is None:
        check_data_id(options.path, options.data_id)
        return _open_files(options, options.path)
    if options.path is not None and is_proved(
        options.path, BrokerAddress(servers=options.servers, tls=options.tls)
    ):
        try:
            return _open_files(options, options.path)
        except (NotDataDirectory, UnavailableError) as error:
            _log.warning("source.path_unreadable path=%s error=%s", options.path, error)
    return KafkaLog(options)


def _open_files(options: SourceOptions, path: str) -> SegmentFileLog:
    return SegmentFileLog(
        path, fail_on_data_loss=options.fail_on_data_loss, committed=options.committed
    )
