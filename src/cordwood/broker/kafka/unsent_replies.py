"""How many bytes of replies the peers have not taken yet, and so how large the next may be."""

from __future__ import annotations

from typing import Final

from cordwood.config import KIB, MIB

UNSENT_BYTES_MAX: Final = 256 * MIB  # over all connections, as far as replies can be made smaller
REPLY_BYTES_MIN: Final = 64 * KIB  # a reader always gets on, by one batch at least


class UnsentReplies:
    """Shared by the connections, which count, and by Fetch, which asks. Lives on the event loop."""

    def __init__(self) -> None:
        self.unsent_bytes = 0

    @property
    def share_bytes(self) -> int:
        """What one reply may take now: a quarter of what is left for all."""
        return max(REPLY_BYTES_MIN, (UNSENT_BYTES_MAX - self.unsent_bytes) // 4)
