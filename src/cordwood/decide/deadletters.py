"""The format of a dead letter: the original record plus headers that give the reason.

Key, value and headers of the original are unchanged, so a replay needs nothing else. The headers
below follow them; their names start with ``dlq.``, a common prefix for dead-letter queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cordwood.model import Header

PREFIX: Final = "dlq."
REASON: Final = "dlq.reason"  # one word, for counters
DETAIL: Final = "dlq.detail"  # a sentence for the operator
SOURCE: Final = "dlq.source"  # the peer address a line came from
TOPIC: Final = "dlq.topic"  # the record's origin, with its partition and offset
PARTITION: Final = "dlq.partition"
OFFSET: Final = "dlq.offset"
TOO_LONG: Final = "too_long"  # a reason; the size of the line follows it
INGRESS: Final = "line ingress"  # the origin of letters that were lines from a socket


def headers_for_line(reason: str, peer: str) -> tuple[Header, ...]:
    """Headers for bytes from a socket that could not be parsed into a record."""
    return (Header(REASON, reason.encode()), Header(SOURCE, peer.encode()))


def headers_for_record(
    reason: str, detail: str, topic: str, partition: int, offset: int
) -> tuple[Header, ...]:
    """Headers for a record that could not be routed."""
    return (
        Header(REASON, reason.encode()),
        Header(DETAIL, detail.encode()),
        Header(TOPIC, topic.encode()),
        Header(PARTITION, str(partition).encode()),
        Header(OFFSET, str(offset).encode()),
    )


class Cause(NamedTuple):
    """The parsed headers of a dead letter; absent ones are None."""

    reason: str | None
    detail: str | None
    source: str | None
    topic: str | None
    partition: int | None
    offset: int | None


def parse_cause(headers: Iterable[Header]) -> Cause:
    """Parse a dead letter's headers; if a name repeats, the last one counts."""
    values = {header.key: header.value for header in headers if header.key.startswith(PREFIX)}
    texts = {name: value.decode("utf-8", "replace") for name, value in values.items() if value}
    return Cause(
        reason=texts.get(REASON),
        detail=texts.get(DETAIL),
        source=texts.get(SOURCE),
        topic=texts.get(TOPIC),
        partition=_number(texts.get(PARTITION)),
        offset=_number(texts.get(OFFSET)),
    )


def group_of(cause: Cause) -> tuple[str, str]:
    """Return reason and topic, to count letters by; a line from a socket came from no topic.

    What differs between letters of one kind does not count: the size of a line that is too long,
    and the sender's address, because every connection has a port of its own.
    """
    reason = cause.reason or "unknown"
    origin = cause.topic or (INGRESS if cause.source else "unknown")
    return TOO_LONG if reason.startswith(f"{TOO_LONG} ") else reason, origin


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
