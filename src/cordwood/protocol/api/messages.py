"""Every request of the HTTP API: one frozen message per route, decoded by ``decoding``.

A field without a default is required. ``docs/http.md`` says what the fields mean. Nothing here
knows whether a topic exists; the broker checks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Nothing:
    """A request that takes no parameters."""


@dataclass(frozen=True, slots=True)
class ListTopics:
    """List topics: ``name`` selects one; ``brief`` = 1 omits partitions."""

    name: str | None = None
    brief: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Seal the active segments of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Delete the segments that RECLAIM allows, in one topic or in all."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """Serve an offline partition without its lost records."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class AcceptDamage:
    """Accept the damaged records of a segment as lost."""

    topic: str
    partition: int
    segment: int  # the base offset of the segment


@dataclass(frozen=True, slots=True)
class Scrub:
    """Scrub one topic or all."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ListGroups:
    """List one group or all."""

    group: str | None = None


@dataclass(frozen=True, slots=True)
class ListReaders:
    """List the readers of one topic or of all."""

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
    """Remove a binding."""

    kind: Literal["exact", "prefix"]
    key: str


@dataclass(frozen=True, slots=True)
class Upload:
    """The name of a staged file; its bytes are the body."""

    job: str
    name: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete what a job staged."""

    job: str


@dataclass(frozen=True, slots=True)
class ListDeliveries:
    """List the deliveries of one query or of all."""

    query: str | None = None


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """Discard the missing parts of a query's delivery."""

    query: str


@dataclass(frozen=True, slots=True)
class DeliveryPart:
    """A staged file of complete batches for one partition."""

    topic: str
    partition: int
    file: str
    sha256: str  # of the file; the appended bytes must match it
    topic_id: str = ""  # of the topic it was staged for, if that topic existed


@dataclass(frozen=True, slots=True)
class DeliveryCursor:
    """A reader's cursor after a delivery, and where it must be before it."""

    reader: str
    topic: str
    partition: int
    offset: int
    start: int | None = None
    topic_id: str = ""  # of the topic that was read


@dataclass(frozen=True, slots=True)
class Deliver:
    """Append a query's staged batch and move cursors along with it."""

    query: str
    batch: int
    job: str
    parts: tuple[DeliveryPart, ...]
    cursors: tuple[DeliveryCursor, ...] = ()
    once: bool = False  # the query consists of this one batch


@dataclass(frozen=True, slots=True)
class ListCompaction:
    """List compacted partitions of one topic or of all; ``brief`` returns the schedule only."""

    topic: str | None = None
    brief: str | None = None


@dataclass(frozen=True, slots=True)
class Compact:
    """A request or report of a compaction job; the action decides which fields are required."""

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
    """List the bundles of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as recorded in the segment index."""

    start_offset: int
    end_offset: int
    name: str
    sha256: str
    link: str
    place: str


@dataclass(frozen=True, slots=True)
class RecordBundles:
    """Bundles that a job has written and read back."""

    topic: str
    partition: int
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, slots=True)
class RecordReplay:
    """The progress of a replay; the broker stores the record without interpreting it."""

    id: str
    record: dict[str, Any]
