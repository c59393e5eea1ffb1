"""How a broker's process keeps its memory: freed buffers are used again, not given back at once.

A broker takes and frees buffers of a few hundred kilobytes all day. Left alone, glibc returns each
to the kernel, which clears a new page for every 4 KiB of the next one; that was two fifths of the
system time of a produce.
"""

from __future__ import annotations

import ctypes
from typing import Final

from cordwood.config import MIB

KEPT_BYTES: Final = 64 * MIB  # free memory at the top of the heap before any is given back
APART_BYTES: Final = 32 * MIB  # larger buffers get pages of their own, gone when freed
_TRIM_THRESHOLD: Final = -1  # glibc's numbers, malloc.h
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Tell the allocator; where it is not glibc's, nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, APART_BYTES)
