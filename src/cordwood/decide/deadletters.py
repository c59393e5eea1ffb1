"""What a dead letter looks like, whoever writes it: the original record, and headers that say why.

The key, value and headers are the original's, untouched, so that a replay needs nothing else. The
headers below come after them; their names start with ``dlq.``, as Kafka's own dead-letter queues
name theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cordwood.model import Header

PREFIX: Final = "dlq."
REASON: Final = "dlq.reason"  # one word, countable
DETAIL: Final = "dlq.detail"  # a sentence for a person
SOURCE: Final = "dlq.source"  # the peer address a line came from
TOPIC: Final = "dlq.topic"  # where a record came from, with its partition and offset
PARTITION: Final = "dlq.partition"
OFFSET: Final = "dlq.offset"


def headers_for_line(reason: str, peer: str) -> tuple[Header, ...]:
    """For bytes off a socket that never became a record."""
    return (Header(REASON, reason.encode()), Header(SOURCE, peer.encode()))


def headers_for_record(
    reason: str, detail: str, topic: str, partition: int, offset: int
) -> tuple[Header, ...]:
    """For a record that could not be routed."""
    return (
        Header(REASON, reason.encode()),
        Header(DETAIL, detail.encode()),
        Header(TOPIC, topic.encode()),
        Header(PARTITION, str(partition).encode()),
        Header(OFFSET, str(offset).encode()),
    )


class Cause(NamedTuple):
    """What the headers of a dead letter say; parts that nobody wrote are None."""

    reason: str | None
    detail: str | None
    source: str | None
    topic: str | None
    partition: int | None
    offset: int | None


def parse_cause(headers: Iterable[Header]) -> Cause:
    """Read a dead letter's headers; the last of a name counts, as a letter may die again."""
    said = {header.key: header.value for header in headers if header.key.startswith(PREFIX)}
    texts = {name: value.decode("utf-8", "replace") for name, value in said.items() if value}
    return Cause(
        reason=texts.get(REASON),
        detail=texts.get(DETAIL),
        source=texts.get(SOURCE),
        topic=texts.get(TOPIC),
        partition=_number(texts.get(PARTITION)),
        offset=_number(texts.get(OFFSET)),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
