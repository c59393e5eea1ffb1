"""What holds segments that RECLAIM would delete, in one sentence with the remedy."""

from __future__ import annotations

from cordwood.plural import plural
from cordwood.protocol.api.topics import HeldSegments


def held_text(held: HeldSegments) -> str:
    """Return how much is held, by what, and how it is released."""
    amount = f"{plural(held.segments, 'segment')} ({plural(held.size_bytes, 'byte')})"
    if held.holder == "no_reader":
        return (
            f"{amount} kept: no reader is registered; `cordwood reader register {held.topic} "
            "READER` and acknowledge, or change cleanup.policy"
        )
    if held.holder == "archive":
        return f"{amount} kept: not archived yet; `cordwood archive create {held.topic}`"
    who = f"reader{'s' if len(held.readers) > 1 else ''} {', '.join(held.readers)}"
    return f"{amount} kept for {who}; `cordwood reader list {held.topic}` shows how far behind"
