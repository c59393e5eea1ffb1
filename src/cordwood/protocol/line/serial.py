"""A producer's ``n``: a count from 1 that wraps at 2**31, compared as a serial number.

After 2**31 - 1 comes 0. Half of the values are ahead of any ``n`` and half are behind, so the order
is defined as long as a producer is never 2**30 records ahead of what was confirmed. A producer
without confirmed records is at 0, so its first ``n`` is 1.
"""

from __future__ import annotations

from typing import Final

SERIAL_SPAN: Final = 2**31
NOTHING_YET: Final = 0  # the position of a producer before its first record


def next_n(n: int) -> int:
    """Return the ``n`` of the next record."""
    return (n + 1) % SERIAL_SPAN


def is_after(n: int, other: int) -> bool:
    """Return whether ``n`` is a later record than ``other``."""
    return 0 < (n - other) % SERIAL_SPAN < SERIAL_SPAN // 2
