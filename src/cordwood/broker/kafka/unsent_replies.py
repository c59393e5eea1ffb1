"""Counts the reply bytes not yet sent on all connections, to limit the size of the next reply."""

from __future__ import annotations

from typing import Final

from cordwood.config import KIB, MIB

UNSENT_BYTES_MAX: Final = 256 * MIB  # over all connections, where replies can be made smaller
REPLY_BYTES_MIN: Final = 64 * KIB  # a reader always makes progress, by one batch at least


class UnsentReplies:
    """The connections count here, and Fetch asks for its share. Used only on the event loop."""

    def __init__(self) -> None:
        self.unsent_bytes = 0

    @property
    def share_bytes(self) -> int:
        """The most that one reply may take now: a quarter of what is left for all."""
        return max(REPLY_BYTES_MIN, (UNSENT_BYTES_MAX - self.unsent_bytes) // 4)
