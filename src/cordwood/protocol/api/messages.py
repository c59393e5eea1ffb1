"""Every request of the HTTP API: one frozen message per route, decoded by ``decoding``.

A field without a default must be given. Names are the API's; what they mean is in
``docs/http.md``. Nothing here knows whether a topic exists: that is the broker's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Nothing:
    """A request that takes no parameters."""


@dataclass(frozen=True, slots=True)
class ListTopics:
    """``name`` for one topic; ``brief`` = 1 without partitions."""

    name: str | None = None
    brief: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Seal the active segments of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Drop what may go, of one topic or of all."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """Serve an offline partition without what is gone."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class AcceptDamage:
    """Go on without the damaged records of a segment."""

    topic: str
    partition: int
    segment: int  # its base offset


@dataclass(frozen=True, slots=True)
class Scrub:
    """Of one topic or of all."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ListGroups:
    """One group or all."""

    group: str | None = None


@dataclass(frozen=True, slots=True)
class ListReaders:
    """Of one topic or of all."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeReader:
    """``advance`` and ``reset`` need an offset; ``register`` may create the topic."""

    action: Literal["register", "remove", "advance", "reset"]
    topic: str
    reader: str
    partition: int = 0
    offset: int | None = None
    create: bool = False


@dataclass(frozen=True, slots=True)
class SetRoute:
    """Bind a routing key to a topic."""

    kind: Literal["exact", "prefix"]
    key: str
    topic: str


@dataclass(frozen=True, slots=True)
class RemoveRoute:
    """Take a binding away."""

    kind: Literal["exact", "prefix"]
    key: str


@dataclass(frozen=True, slots=True)
class Upload:
    """The name of a staged file; its bytes are the body."""

    job: str
    name: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget what a job staged."""

    job: str


@dataclass(frozen=True, slots=True)
class ListDeliveries:
    """Of one query or of all."""

    query: str | None = None


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """Discard what is missing of a query's delivery."""

    query: str


@dataclass(frozen=True, slots=True)
class DeliveryPart:
    """A staged file of whole batches for one partition."""

    topic: str
    partition: int
    file: str
    sha256: str  # of the file; what is appended has it
    topic_id: str = ""  # of the topic it was staged for, where that was there


@dataclass(frozen=True, slots=True)
class DeliveryCursor:
    """Where a reader stands after a delivery, and where it must have stood before."""

    reader: str
    topic: str
    partition: int
    offset: int
    start: int | None = None
    topic_id: str = ""  # of the topic that was read


@dataclass(frozen=True, slots=True)
class Deliver:
    """Append a query's staged batch and move cursors with it."""

    query: str
    batch: int
    job: str
    parts: tuple[DeliveryPart, ...]
    cursors: tuple[DeliveryCursor, ...] = ()
    once: bool = False  # the query has this one batch


@dataclass(frozen=True, slots=True)
class ListCompaction:
    """Of one topic or of all; ``brief`` for the schedule alone."""

    topic: str | None = None
    brief: str | None = None


@dataclass(frozen=True, slots=True)
class Compact:
    """What a compaction job asks or reports; which fields it needs depends on the action."""

    action: Literal["begin", "renew", "finish", "fail", "release"]
    topic: str | None = None
    partition: int | None = None
    topic_id: str | None = None
    lease: str = ""
    demand: bool = False
    dry: bool = False
    jobs: tuple[str, ...] | None = None
    state: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ListBundles:
    """The archive of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as the segment index remembers it."""

    start_offset: int
    end_offset: int
    name: str
    sha256: str
    link: str
    place: str


@dataclass(frozen=True, slots=True)
class RecordBundles:
    """Bundles a job has written and read back."""

    topic: str
    partition: int
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, slots=True)
class RecordReplay:
    """What a replay has done so far; the record is the job's own business."""

    id: str
    record: dict[str, Any]
