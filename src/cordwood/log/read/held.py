"""Check whether a broker holds a data directory, for readers of its files. Changes nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from cordwood.log.format.layout import LOCK

UNSUPPORTED: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP})
"""What a file system answers that locks no directories."""


def is_held(path: Path, *, shared_fds: list[int]) -> bool:
    """Whether a broker may be writing here.

    Takes the locks shared and adds their descriptors to ``shared_fds``. If the result is False, no
    broker can start here until the caller closes them.
    """
    for name, flags in ((path, os.O_DIRECTORY), (path / LOCK, 0)):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags)
        except FileNotFoundError:
            continue
        shared_fds.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
    return False
