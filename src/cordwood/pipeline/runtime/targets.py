"""The topics that a job writes to: ids, partition counts and maximum batch sizes.

The driver reads them when it plans the job. The broker compares topic ids and rejects files that
were staged for a deleted topic of the same name. Batches are cut here to fit
``max.message.bytes``, which the broker checks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cordwood.batch.column_encoder import encode_columns, plan_batches
from cordwood.batch.columns import Columns
from cordwood.batch.header import HEADER_BYTES
from cordwood.batch.header_table import walk_batches
from cordwood.config import MIB, BrokerConfig, TopicConfig
from cordwood.errors import BatchTooLarge
from cordwood.model import Codec
from cordwood.pipeline.runtime.broker_api import BrokerApi, TargetTopic

BATCH_BYTES: Final = MIB  # target size of a batch, unless the topic's limit is lower
DEAD_LETTER_BYTES_MAX: Final = 64 * MIB  # the broker rejects no dead letter for its size


@dataclass(frozen=True, slots=True)
class Targets:
    """All topics at the time of planning; small and picklable."""

    known: Mapping[str, TargetTopic] = field(default_factory=dict)
    new_count: int = 1  # partitions of a topic that the delivery creates
    dead_letter_topic: str = ""
    new_bytes_max: int = TopicConfig().max_message_bytes

    @classmethod
    def of(cls, api: BrokerApi) -> Targets:
        """Ask the broker for its topics."""
        status = api.status()
        count = status.config.get("num.partitions", BrokerConfig().num_partitions)
        bytes_max = status.config.get("max.message.bytes", TopicConfig().max_message_bytes)
        return cls(api.targets(), int(count), status.dead_letter_topic, int(bytes_max))

    def get(self, topic: str) -> TargetTopic:
        """The topic, or the topic that will be created under this name."""
        target = self.known.get(topic) or TargetTopic("", self.new_count, self.new_bytes_max)
        if topic != self.dead_letter_topic:
            return target
        return target._replace(batch_bytes_max=max(target.batch_bytes_max, DEAD_LETTER_BYTES_MAX))


def encode_fitting(columns: Columns, codec: Codec, topic: str, bytes_max: int) -> bytes | bytearray:
    """Encode rows as batches of at most ``bytes_max`` bytes after compression.

    Raises ``BatchTooLarge``, with its size and the setting's name, for a record that does not fit
    into a batch of its own.
    """
    batch_bytes = max(1, min(BATCH_BYTES, bytes_max - HEADER_BYTES))
    batches = plan_batches(columns, batch_bytes=batch_bytes, codec=codec)
    data = encode_columns(columns, batches)
    sizes = walk_batches(data, verify=False).batches.sizes
    if not bool((sizes > bytes_max).any()):
        return data
    pieces, row, position = [], 0, 0
    for size, count in zip(sizes.tolist(), batches.counts.tolist(), strict=True):
        if size <= bytes_max:
            pieces.append(bytes(data[position : position + size]))
        else:
            pieces += _halved(columns.chosen(slice(row, row + count)), codec, topic, bytes_max)
        row, position = row + count, position + size
    return b"".join(pieces)


def _halved(columns: Columns, codec: Codec, topic: str, bytes_max: int) -> list[bytes]:
    """Halve the rows of a batch that is too large until every part fits."""
    count = len(columns)
    if count == 1:
        raise too_large(_one_batch(columns, codec), topic, bytes_max)
    pieces = []
    for half in (slice(0, count // 2), slice(count // 2, count)):
        rows = columns.chosen(half)
        data = _one_batch(rows, codec)
        fits = len(data) <= bytes_max
        pieces += [data] if fits else _halved(rows, codec, topic, bytes_max)
    return pieces


def _one_batch(columns: Columns, codec: Codec) -> bytes:
    batches = plan_batches(columns, batch_bytes=2**62, codec=codec)
    return bytes(encode_columns(columns, batches))


def too_large(batch: bytes | bytearray, topic: str, bytes_max: int) -> BatchTooLarge:
    """The error for a record that is larger than its topic's batch limit."""
    return BatchTooLarge(
        f"a record takes {len(batch)} bytes as a batch of its own, more than "
        f"max.message.bytes={bytes_max} of topic {topic}; raise that setting, or filter out the "
        "record"
    )
