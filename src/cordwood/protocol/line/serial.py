"""A producer's ``n``: a count from 1 that wraps at 2**31, compared as serial numbers are.

After 2**31 - 1 comes 0. Half the circle lies ahead of any ``n`` and half behind, so an order exists
as long as a producer is never 2**30 records ahead of what was confirmed. A producer that has
confirmed nothing stands at 0, which makes 1 its first ``n``.
"""

from __future__ import annotations

from typing import Final

SERIAL_SPAN: Final = 2**31
NOTHING_YET: Final = 0  # where a producer stands before its first record


def next_n(n: int) -> int:
    """The ``n`` of the record after this one."""
    return (n + 1) % SERIAL_SPAN


def is_after(n: int, other: int) -> bool:
    """Whether ``n`` is a later record than ``other``."""
    return 0 < (n - other) % SERIAL_SPAN < SERIAL_SPAN // 2
