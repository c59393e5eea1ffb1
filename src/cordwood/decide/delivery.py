"""DELIVER: tracks what a query has delivered, and plans which parts of a batch to append.

A query is a Spark query, a route, a replay or a restore. It delivers numbered batches, each made of
parts for partitions. One ``DeliveryRecord`` per query holds its last batch, the ids of that batch's
topics and, until the batch is done, every part of it.

A batch is delivered once *per topic*, identified by topic id, not by name: if a topic is deleted
and recreated, the same batch is due again for that topic only. The exception is a batch that moves
cursors (of a route or a replay): its input is consumed, so it is delivered only once. Nothing here
reads a file or the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from cordwood.errors import CorruptionError
from cordwood.model import TopicPartition


class Part(NamedTuple):
    """One staged file of complete batches for one partition."""

    topic: str
    partition: int
    file: str
    sequence: int = 0  # of its first record; it never wraps
    records: int = 0
    size_bytes: int = 0
    topic_id: str = ""  # the id of the topic the file was staged for, if known
    sha256: str = ""  # of the file, from the request; empty if unknown


class CursorMove(NamedTuple):
    """The position of a reader's cursor after a delivery."""

    reader: str
    topic: str
    partition: int
    offset: int


class DeliveryRecord(
    msgspec.Struct, frozen=True, kw_only=True, rename={"is_done": "done", "is_once": "once"}
):
    """The stored state of a query: its last batch, and what is needed to finish it."""

    batch: int
    job: str = ""
    producer_id: int = -1
    is_done: bool = True
    next: Mapping[str, int] = {}  # partition → sequence number
    parts: tuple[Part, ...] = ()
    cursors: tuple[CursorMove, ...] = ()
    topics: Mapping[str, str] = {}  # name → id at acceptance
    accepted_ms: int = 0
    is_once: bool = False  # the query delivers only this batch

    def unchanged(self, topic: str, topic_id: str | None) -> bool:
        """Whether the topic still has the id this was accepted for, or that id is unknown."""
        return topic_id is not None and self.topics.get(topic, topic_id) == topic_id


def encode_delivery(record: DeliveryRecord) -> Any:
    """Plain values for the metadata."""
    return msgspec.to_builtins(record)


def parse_delivery(query: str, stored: Any) -> DeliveryRecord:
    """Inverse of ``encode_delivery``; also reads the format of earlier versions."""
    try:
        parts = [_parse_part(fields) for fields in stored["parts"]]
        return msgspec.convert({**stored, "parts": parts}, DeliveryRecord)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the delivery of query {query} cannot be read: {error!r}") from None


def _parse_part(fields: Sequence[Any]) -> Part:
    """Parse a part; earlier versions wrote no hash, or a forgeable checksum, which is dropped."""
    *known, last = fields
    is_hashed = len(fields) < len(Part._fields) or isinstance(last, str)
    return Part(*fields) if is_hashed else Part(*known)


# --- planning -----------------------------------------------------------------------------------


class DeliveryDue(StrEnum):
    """What to do with a batch that a query delivers."""

    ACCEPT = "accept"  # append it, or only the topics in ``DeliveryPlan.topics``
    REPEAT = "repeat"  # every topic already has it
    STALE = "stale"  # a later batch was delivered: the query's checkpoint is older than the log


class DeliveryPlan(NamedTuple):
    """The decision, and the topics whose parts are appended."""

    due: DeliveryDue
    topics: frozenset[str] = frozenset()


def plan_delivery(
    last: DeliveryRecord | None,
    batch: int,
    targets: Collection[str],
    ids: Mapping[str, str | None],
    *,
    moves_cursors: bool = False,
) -> DeliveryPlan:
    """Decide what of a batch for ``targets`` to append.

    ``ids`` maps these topics, and those of the last delivery, to their current ids; None if a topic
    does not exist. A batch that ``moves_cursors`` has consumed its input and is never appended
    twice.
    """
    everything = DeliveryPlan(DeliveryDue.ACCEPT, frozenset(targets))
    if last is None or batch > last.batch:
        return everything
    renewed = frozenset(name for name in targets if not last.unchanged(name, ids[name]))
    if moves_cursors:
        return DeliveryPlan(DeliveryDue.REPEAT if batch == last.batch else DeliveryDue.STALE)
    if batch == last.batch:
        return (
            DeliveryPlan(DeliveryDue.ACCEPT, renewed)
            if renewed
            else DeliveryPlan(DeliveryDue.REPEAT)
        )
    if last.topics and not any(last.unchanged(name, ids[name]) for name in last.topics):
        return everything  # none of the topics delivered to still exists: start again
    return DeliveryPlan(DeliveryDue.STALE)


def numbers_left(record: DeliveryRecord, topics: Mapping[str, str]) -> dict[str, int]:
    """A query's sequence numbers, without those of topics that were deleted or recreated."""
    return {
        where: number
        for where, number in record.next.items()
        if record.unchanged(name := where.rpartition("-")[0], topics.get(name))
    }


def plan_appends(chain: Sequence[Part], bytes_max: int) -> Iterator[list[Part]]:
    """Split a partition's parts into runs of at most ``bytes_max``, but at least one part."""
    run: list[Part] = []
    run_bytes = 0
    for part in chain:
        if run and run_bytes + part.size_bytes > bytes_max:
            yield run
            run, run_bytes = [], 0
        run.append(part)
        run_bytes += part.size_bytes
    if run:
        yield run


def chains_of(parts: Sequence[Part]) -> dict[TopicPartition, list[Part]]:
    """Parts by partition, in their original order."""
    chains: dict[TopicPartition, list[Part]] = {}
    for part in parts:
        chains.setdefault(TopicPartition(part.topic, part.partition), []).append(part)
    return chains


# --- expiry -------------------------------------------------------------------------------------


def plan_forget(
    records: Mapping[str, DeliveryRecord], now_ms: int, once_ms: int, retention_ms: int
) -> list[str]:
    """The queries to forget: done, and idle for longer than their limit.

    The limit is ``once_ms`` for a query with a single batch, whose driver may retry until then, and
    ``retention_ms`` for any other.
    """
    return [
        query
        for query, record in records.items()
        if record.is_done
        and now_ms - record.accepted_ms > (once_ms if record.is_once else retention_ms)
    ]


# --- abandoned jobs -----------------------------------------------------------------------------


def plan_sweep(
    jobs: Sequence[tuple[str, int]], needed: Collection[str], idle_ms_max: int
) -> list[str]:
    """The abandoned jobs to delete: idle for too long, and part of no accepted delivery."""
    return [job for job, idle_ms in jobs if idle_ms > idle_ms_max and job not in needed]
