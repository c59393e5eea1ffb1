"""Is a stretch of a file in the page cache? Asked before reading where nobody may wait for a disk.

The kernel is asked for single bytes, to be given only if it need not wait. It keeps and drops a
file's pages in runs, so a byte here and there speaks for its neighbours; where one is wrong, a read
waits once, for little. Asking starts to read what is missing: a disk fast enough to have the page
before the kernel looks again makes the answer True, and then nobody waits either.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import Final

STRIDE_BYTES: Final = 131_072  # as far as the kernel reads ahead
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)  # Linux


def is_resident(fd: int, start: int, end: int) -> bool:
    """Whether ``[start, end)`` can be read without waiting; False also where nobody can tell."""
    if _NO_WAIT is None:
        return False
    byte = [bytearray(1)]
    try:
        for position in chain(range(start, end - 1, STRIDE_BYTES), (end - 1,)):
            os.preadv(fd, byte, position, _NO_WAIT)
    except OSError:  # it would have to wait, or the file system does not know
        return False
    return True
