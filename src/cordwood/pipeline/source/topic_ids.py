"""Which topic a checkpoint's offsets belong to: a recreated topic is another one. Pure.

A name comes back after a topic was deleted; its id does not. So offsets are written down together
with the ids of their topics, under a key that no topic can have::

    {"@ids": {"orders": "da351dcc-fdd4-4abc-95bd-0dabe7710890"}, "orders": {"0": 25}}

A checkpoint from before there were ids reads as before: nothing is known, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cordwood.errors import DataLoss

IDS: Final = "@ids"


def with_ids(encoded: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Encoded offsets with the ids of their topics, as far as they are known."""
    known = {topic: ids[topic] for topic in sorted(encoded) if topic in ids}
    return {IDS: known, **encoded} if known else dict(encoded)


def ids_of(encoded: Mapping[str, Any]) -> dict[str, str]:
    """The ids that were written down with offsets; none from an older checkpoint."""
    return dict(encoded.get(IDS) or {})


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics that have another id now than before; one unknown on either side is not judged."""
    return sorted(topic for topic in before.keys() & now.keys() if before[topic] != now[topic])


def recreated_error(topics: Iterable[str]) -> DataLoss:
    """What to say when a query must not go on."""
    names = ", ".join(topics)
    return DataLoss(
        f"topic {names} was deleted and created again after the query's last checkpoint, so its "
        "offsets are other records now; set failOnDataLoss to false to read the new topic from its "
        "beginning, or give the query a new checkpoint"
    )
