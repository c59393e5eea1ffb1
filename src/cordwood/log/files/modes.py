"""Who may read what cordwood writes: the one place that knows file modes.

Records are private: files are 0600 and directories 0700, whatever the umask says. With
``file.mode=group`` the group of the data directory may read it (0640, 2750; new files inherit the
group), and may write where jobs leave their results for the broker: ``staging``, ``cleaner`` and
``archive`` (0660, 2770). That is for containers that share a volume and for Spark under another
user. Nothing is ever readable by everybody.

A job has no settings of the broker's: it does as the directory it writes to was made (``like``).
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
    """The modes by which the nearest directory that exists was made."""
    for place in (directory, *directory.parents):
        try:
            found = place.stat().st_mode
        except FileNotFoundError:
            continue
        return GROUP if found & stat.S_IRGRP else OWNER
    return OWNER


def open_with(path: Path, flags: int, mode: int) -> int:
    """A descriptor of a file with exactly this mode, whatever the umask or an older file had."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    found = os.fstat(fd)
    if stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid():
        os.fchmod(fd, mode)
    return fd


def make_directory(path: Path, mode: int) -> None:
    """A directory with this mode; no error, and nothing changed, if it is there."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if stat.S_IMODE(path.stat().st_mode) != mode:  # the umask took bits away
        path.chmod(mode)


def make_shared_directory(path: Path) -> None:
    """A directory for a job's results, with those above it that are missing; safe to repeat."""
    modes = like(path)
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        make_directory(missing, modes.shared_directory)


def open_shared(path: Path) -> BinaryIO:
    """A file for a job's result, over whatever had its name."""
    fd = open_with(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, like(path.parent).shared_file)
    return os.fdopen(fd, "wb")


def write_shared(path: Path, data: bytes) -> None:
    """A job's result, whole."""
    with open_shared(path) as file:
        file.write(data)
