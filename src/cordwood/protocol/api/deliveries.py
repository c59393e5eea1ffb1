"""Deliveries of staged batches, and replays of dead letters, between jobs and the broker."""

from __future__ import annotations

import msgspec

from cordwood.protocol.api.call import Call, Count, Done, Text


class UploadFile(Call[Done], frozen=True):
    """The name of a staged file; its bytes are the body."""

    route = "PUT", "/staging"
    job: Text
    name: Text


class DiscardJob(Call[Done], frozen=True):
    """Delete what a job staged."""

    route = "DELETE", "/staging"
    job: Text


class DeliveryRow(msgspec.Struct, frozen=True):
    """The last batch of a query; no batch if its record cannot be read."""

    batch: int | None = None
    done: bool = False
    topics: tuple[str, ...] = ()
    accepted_ms: int | None = None
    quarantined: str | None = None  # why it could not be finished


class DeliveryList(msgspec.Struct, frozen=True):
    """The last delivery of each query."""

    deliveries: dict[str, DeliveryRow]


class ListDeliveries(Call[DeliveryList], frozen=True):
    """List the deliveries of one query or of all."""

    route = "GET", "/deliveries"
    query: Text | None = None


class Discarded(msgspec.Struct, frozen=True):
    """How many records of each partition were given up."""

    discarded: dict[str, int]


class GiveUpDelivery(Call[Discarded], frozen=True):
    """Discard the missing parts of a query's delivery."""

    route = "DELETE", "/deliveries"
    query: Text


class DeliveryPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A staged file of complete batches for one partition."""

    topic: Text
    partition: Count
    file: Text
    sha256: Text  # of the file; the appended bytes must match it
    topic_id: Text = ""  # of the topic it was staged for, if that topic existed


def decode_parts(text: str) -> list[DeliveryPart]:
    """Decode the parts that a task encoded as a JSON list for the driver."""
    return msgspec.json.decode(text, type=list[DeliveryPart])


class DeliveryCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader's cursor after a delivery, and where it must be before it."""

    reader: Text
    topic: Text
    partition: Count
    offset: Count
    start: Count | None = None
    topic_id: Text = ""  # of the topic that was read


class Delivered(msgspec.Struct, frozen=True):
    """Whether this request appended the batch; false if an earlier one did."""

    delivered: bool


class Deliver(Call[Delivered], frozen=True):
    """Append a query's staged batch and move cursors along with it."""

    route = "POST", "/deliveries"
    query: Text
    batch: Count
    job: Text
    parts: tuple[DeliveryPart, ...]
    cursors: tuple[DeliveryCursor, ...] = ()
    once: bool = False  # the query consists of this one batch


class ReplayRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings and the progress of a replay; the broker stores it without interpreting it."""

    topic: Text = ""
    to: Text = ""
    where: Text | None = None
    set_key: Text | None = None
    set_value: Text | None = None
    name: Text = ""
    started: Text = ""
    updated: Text = ""
    scanned: Count = 0
    records: Count = 0
    state: Text = ""


class ReplayRow(ReplayRecord, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A stored replay."""

    id: str


class ReplayList(msgspec.Struct, frozen=True):
    """Every replay of dead letters, the oldest first."""

    replays: tuple[ReplayRow, ...]


class ListReplays(Call[ReplayList], frozen=True):
    """List the replays."""

    route = "GET", "/replays"


class RecordReplay(Call[Done], frozen=True):
    """Store the progress of a replay."""

    route = "POST", "/replays"
    id: Text
    record: ReplayRecord
