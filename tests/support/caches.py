"""Files out of the page cache, as after a restart of the machine."""

from __future__ import annotations

import os

import pytest


def drop_cached(fd: int) -> None:
    """All of a file; skips the test on a file system that keeps all in memory."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    last = os.fstat(fd).st_size - 1
    try:
        os.preadv(fd, [bytearray(1)], last, os.RWF_NOWAIT)
    except BlockingIOError:
        return
    except OSError as error:
        pytest.skip(f"the file system does not tell what is cached: {error.strerror}")
    pytest.skip("the file system keeps its files in memory")
