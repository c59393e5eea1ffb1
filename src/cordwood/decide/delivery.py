"""DELIVER: what a query has delivered, and what of its next batch is still to be appended.

A query is a Spark query, a route, a replay or a restore; it delivers numbered batches, each made of
parts for partitions. What is remembered of it is one ``DeliveryRecord``: its last batch, the ids of
the topics that batch was for, and, until the batch is done, every part of it.

A batch is delivered once *per topic*, and a topic is its id, not its name: after a topic was
deleted and created again, the same batch is due there again, and nowhere else. A batch that moves
cursors (of a route or a replay) is the exception: what it was made from is consumed, once. Nothing
here reads a file or the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from cordwood.errors import CorruptionError
from cordwood.model import TopicPartition


class Part(NamedTuple):
    """One staged file of whole batches for one partition."""

    topic: str
    partition: int
    file: str
    sequence: int = 0  # of its first record, counted without end
    records: int = 0
    size_bytes: int = 0
    topic_id: str = ""  # of the topic the file was staged for, when that was known
    sha256: str = ""  # of the file's bytes, as the request named it; empty: nothing is known


class CursorMove(NamedTuple):
    """Where a reader's cursor stands once a delivery is done."""

    reader: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """What is remembered of a query: its last batch, and how to finish it."""

    batch: int
    job: str = ""
    producer_id: int = -1
    is_done: bool = True
    next: Mapping[str, int] = field(default_factory=dict)  # partition → sequence number
    parts: tuple[Part, ...] = ()
    cursors: tuple[CursorMove, ...] = ()
    topics: Mapping[str, str] = field(default_factory=dict)  # name → id when it was accepted
    accepted_ms: int = 0
    is_once: bool = False  # the query has this one batch and never comes back

    def unchanged(self, topic: str, topic_id: str | None) -> bool:
        """Whether a topic is still the one this was accepted for; True when that is not known."""
        return topic_id is not None and self.topics.get(topic, topic_id) == topic_id


def encode_delivery(record: DeliveryRecord) -> dict[str, Any]:
    """Plain values, for the catalog."""
    return {
        "batch": record.batch,
        "job": record.job,
        "producer_id": record.producer_id,
        "done": record.is_done,
        "next": dict(record.next),
        "parts": [list(part) for part in record.parts],
        "cursors": [list(move) for move in record.cursors],
        "topics": dict(record.topics),
        "accepted_ms": record.accepted_ms,
        "once": record.is_once,
    }


def parse_delivery(query: str, found: Any) -> DeliveryRecord:
    """Inverse of ``encode_delivery``, also for what earlier versions wrote."""
    try:
        return DeliveryRecord(
            batch=int(found["batch"]),
            job=str(found["job"]),
            producer_id=int(found["producer_id"]),
            is_done=bool(found["done"]),
            next={str(where): int(number) for where, number in found["next"].items()},
            parts=tuple(_parse_part(fields) for fields in found["parts"]),
            cursors=tuple(CursorMove(*fields) for fields in found["cursors"]),
            topics=dict(found.get("topics", {})),
            accepted_ms=int(found.get("accepted_ms", 0)),
            is_once=bool(found.get("once", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"the delivery of query {query} cannot be read: {error!r}") from None


def _parse_part(fields: Sequence[Any]) -> Part:
    """Earlier versions wrote no hash, or a checksum that can be forged, which is left out."""
    *known, last = fields
    is_hashed = len(fields) < len(Part._fields) or isinstance(last, str)
    return Part(*fields) if is_hashed else Part(*known)


# --- what is due --------------------------------------------------------------------------------


class DeliveryDue(StrEnum):
    """What becomes of a batch that a query comes with."""

    ACCEPT = "accept"  # append it, or what ``DeliveryPlan.topics`` names of it
    REPEAT = "repeat"  # every topic of it has it already
    STALE = "stale"  # a later batch was delivered: the query's checkpoint is older than the log


class DeliveryPlan(NamedTuple):
    """The verdict, and the topics whose parts are appended."""

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
    """What of a batch for ``targets`` is due.

    ``ids`` are the ids of these topics and of those delivered to before, now; None for no topic. A
    batch that ``moves_cursors`` has consumed what it was made from: it never comes twice.
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
        return everything  # a new beginning: nothing the query delivered is there any more
    return DeliveryPlan(DeliveryDue.STALE)


def numbers_left(record: DeliveryRecord, topics: Mapping[str, str]) -> dict[str, int]:
    """A query's sequence numbers, without those of topics that are gone or are others now."""
    return {
        where: number
        for where, number in record.next.items()
        if record.unchanged(name := where.rpartition("-")[0], topics.get(name))
    }


def plan_appends(chain: Sequence[Part], bytes_max: int) -> Iterator[list[Part]]:
    """A partition's parts in runs of about so many bytes, one part at least."""
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
    """Parts by partition, in their order."""
    chains: dict[TopicPartition, list[Part]] = {}
    for part in parts:
        chains.setdefault(TopicPartition(part.topic, part.partition), []).append(part)
    return chains


# --- what is forgotten --------------------------------------------------------------------------


def plan_forget(
    records: Mapping[str, DeliveryRecord], now_ms: int, once_ms: int, retention_ms: int
) -> list[str]:
    """Queries to forget: done, and idle so long.

    A write that happens once is kept while its driver may ask again (``once_ms``), any other query
    for ``retention_ms``.
    """
    return [
        query
        for query, record in records.items()
        if record.is_done
        and now_ms - record.accepted_ms > (once_ms if record.is_once else retention_ms)
    ]


# --- what dead jobs leave -----------------------------------------------------------------------


def plan_sweep(
    found: Sequence[tuple[str, int]], needed: Collection[str], idle_ms_max: int
) -> list[str]:
    """The jobs to forget: idle for long, and in no delivery that was accepted."""
    return [job for job, idle_ms in found if idle_ms > idle_ms_max and job not in needed]
