"""Topic ids in a checkpoint, to detect topics that were deleted and created again. Pure.

A topic that is deleted and created again has the same name but a new id, and its offsets mean
different records. So a checkpoint stores the topic ids next to the offsets, under a key that no
topic can have::

    {"@ids": {"orders": "da351dcc-fdd4-4abc-95bd-0dabe7710890"}, "orders": {"0": 25}}

Older checkpoints without ids stay valid; for them nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cordwood.errors import DataLoss

IDS: Final = "@ids"


def with_ids(encoded: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Encoded offsets together with the known ids of their topics."""
    known = {topic: ids[topic] for topic in sorted(encoded) if topic in ids}
    return {IDS: known, **encoded} if known else dict(encoded)


def ids_of(encoded: Mapping[str, Any]) -> dict[str, str]:
    """The topic ids stored with offsets; empty for an older checkpoint."""
    return dict(encoded.get(IDS) or {})


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics whose id has changed; ignores topics whose id is unknown on either side."""
    return sorted(topic for topic in before.keys() & now.keys() if before[topic] != now[topic])


def recreated_error(topics: Iterable[str]) -> DataLoss:
    """The error that stops a query when its topics were recreated."""
    names = ", ".join(topics)
    return DataLoss(
        f"topic {names} was deleted and created again after the query's last checkpoint, so its "
        "offsets mean other records now; set failOnDataLoss to false to read the new topic from "
        "its beginning, or give the query a new checkpoint"
    )
