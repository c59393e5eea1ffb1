"""Change the modes of an existing data directory to those of ``file.mode``.

A new directory needs no change: ``modes`` sets the modes of its files as they are created. An older
directory, or one whose setting was changed, is walked once. The directory itself is changed last,
so that the walk is repeated after a crash. Files of another user, for example a job's results, are
skipped and logged. They expose no other file, and the mode of the directory itself still keeps
unauthorised users out.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Container, Iterator
from pathlib import Path

from cordwood.errors import UnavailableError
from cordwood.log.files.disk import Files
from cordwood.log.files.modes import Modes

logger = logging.getLogger("cordwood.log")

_OTHERS = 0o007


def settle_permissions(
    data: Path, files: Files, own: Container[str], shared: Container[str]
) -> None:
    """Give our files and directories the modes of ``files.modes``, unless they have them.

    ``own`` are the names in the data directory that are ours, ``shared`` those that jobs write to.
    """
    status, modes = data.stat(), files.modes
    before = stat.S_IMODE(status.st_mode)
    if before == modes.directory:
        return
    if status.st_uid != os.geteuid():
        if before & _OTHERS:
            logger.warning(
                "permissions.open path=%s mode=%o: other users can access it, and it belongs to "
"another user; change its mode as that user", data, before,
            )  # fmt: skip
        return
    refused: list[str] = []
    for entry in sorted(data.iterdir()):
        if entry.name in own:
            for path, mode in _walk(entry, modes, refused, is_shared=entry.name in shared):
                try:
                    files.chmod(path, mode)
                except UnavailableError as error:
                    refused.append(str(error))
    files.chmod(data, modes.directory)
    if refused:
        logger.warning("permissions.not_changed count=%d first=%s", len(refused), refused[0])
    logger.warning(
        "permissions.changed path=%s from=%o to=%o: as set by file.mode",
        data, before, modes.directory,
    )  # fmt: skip


def _walk(
    path: Path, modes: Modes, refused: list[str], *, is_shared: bool
) -> Iterator[tuple[Path, int]]:
    """Yield a path and everything below it with their new modes; symbolic links are skipped."""
    if path.is_symlink():
        return
    if not path.is_dir():
        yield path, modes.shared_file if is_shared else modes.file
        return
    yield path, modes.shared_directory if is_shared else modes.directory
    try:
        children = sorted(path.iterdir())
    except OSError as error:
        refused.append(str(error))
        return
    for child in children:
        yield from _walk(child, modes, refused, is_shared=is_shared)
