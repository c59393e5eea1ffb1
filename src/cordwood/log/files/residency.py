"""Check whether a range of a file is in the page cache, before a read that must not wait for disk.

The kernel is asked for single bytes, with the flag not to wait. It caches and evicts pages in runs,
so a byte here and there represents its neighbours; if that is wrong, the read waits once, briefly.
The question also starts reading missing pages: a disk fast enough to deliver a page before the
kernel checks again makes the answer True, and then no read waits either.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import Final

STRIDE_BYTES: Final = 131_072  # the kernel's read-ahead
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)  # Linux


def is_resident(fd: int, start: int, end: int, no_wait: int | None = _NO_WAIT) -> bool:
    """Whether ``[start, end)`` can be read without waiting; False also where this is unknown."""
    if no_wait is None:
        return False
    byte = [bytearray(1)]
    try:
        for position in chain(range(start, end - 1, STRIDE_BYTES), (end - 1,)):
            os.preadv(fd, byte, position, no_wait)
    except OSError:  # it would wait, or the flag is unsupported
        return False
    return True
