"""File modes: the one place that decides who may read the files that cordwood writes.

Records are private: files are 0600 and directories 0700, whatever the umask. With
``file.mode=group`` the group of the data directory may read it (0640, 2750; new files inherit the
group), and may write where jobs leave their results for the broker: ``staging``, ``cleaner`` and
``archive`` (0660, 2770). That is for containers that share a volume and for Spark under another
user. Nothing is ever readable by all users.

A job does not know the broker's settings: it takes the modes of the directory it writes to
(``like``).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple


class Modes(NamedTuple):
    """Modes of files and directories, and of those that jobs may write."""

    file: int
    directory: int
    shared_file: int
    shared_directory: int


OWNER: Final = Modes(0o600, 0o700, 0o600, 0o700)
GROUP: Final = Modes(0o640, 0o2750, 0o660, 0o2770)
BY_NAME: Final = {"owner": OWNER, "group": GROUP}


def like(directory: Path) -> Modes:
    """The modes of the nearest existing directory at or above ``directory``."""
    for place in (directory, *directory.parents):
        try:
            found = place.stat().st_mode
        except FileNotFoundError:
            continue
        return GROUP if found & stat.S_IRGRP else OWNER
    return OWNER


def open_with(path: Path, flags: int, mode: int) -> int:
    """Open a file and give it exactly this mode, whatever the umask or its old mode."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    found = os.fstat(fd)
    if stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid():
        os.fchmod(fd, mode)
    return fd


def make_directory(path: Path, mode: int) -> None:
    """Create a directory with this mode; an existing one is left unchanged."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if stat.S_IMODE(path.stat().st_mode) != mode:  # the umask removed bits
        path.chmod(mode)


def make_shared_directory(path: Path) -> None:
    """Create a directory for a job's results, and its missing parents. Idempotent."""
    modes = like(path)
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        make_directory(missing, modes.shared_directory)


def open_shared(path: Path) -> BinaryIO:
    """Open a file for a job's result, truncating any file with that name."""
    fd = open_with(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, like(path.parent).shared_file)
    return os.fdopen(fd, "wb")


def write_shared(path: Path, data: bytes) -> None:
    """Write a job's result as a whole file."""
    with open_shared(path) as file:
        file.write(data)
