"""Locks that let only one process use a data directory, and a check that they still hold.

The directory itself is locked (``flock`` on its descriptor), because a lock file can be deleted.
The file ``lock`` is locked as well, for brokers that know only that file and for file systems that
cannot lock directories (NFS). It holds the process id, for ``kill $(cat data/lock)``.

A lock belongs to the opened directory, not to its path. If the directory is moved, replaced or
removed, the lock no longer guards the path. So ``problem`` compares the two: a broker that finds a
difference must not acknowledge another append.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cordwood.errors import DirectoryInUse, UnavailableError
from cordwood.log.files.disk import Files, OpenFile, as_cordwood
from cordwood.log.format.layout import LOCK
from cordwood.log.read.held import UNSUPPORTED

logger = logging.getLogger("cordwood.log")


class DirectoryLock:
    """Both locks of one data directory, held from ``take`` to ``close``."""

    def __init__(self, path: Path, directory_fd: int, file: OpenFile, files: Files) -> None:
        """Keep descriptors that are already locked. Callers use ``take``."""
        self._path = path
        self._directory_fd = directory_fd
        self._file = file
        self._files = files

    @classmethod
    def take(
        cls, path: Path, files: Files, flock: Callable[[int, int], object] = fcntl.flock
    ) -> DirectoryLock:
        """Lock the directory; raises ``DirectoryInUse`` with the holder's process id."""
        directory_fd = _open_directory(path)
        try:
            _lock_directory(directory_fd, path, flock)
            file = _lock_file(path, files)
        except BaseException:
            os.close(directory_fd)
            raise
        return cls(path, directory_fd, file, files)

    def close(self) -> None:
        """Release both locks."""
        self._files.close(self._file)
        os.close(self._directory_fd)

    def problem(self) -> str:
        """Why this process may no longer write here; empty while it may."""
        return self._place_problem() or self._file_problem()

    def check(self) -> None:
        """Raise ``UnavailableError`` if the path leads to another directory; costs one ``stat``."""
        if problem := self._place_problem():
            raise UnavailableError(f"{problem}; stop the broker and put it back")

    def _place_problem(self) -> str:
        try:
            here = self._path.stat()
        except OSError as error:
            return f"the data directory {self._path} cannot be found ({error.strerror})"
        if os.path.samestat(here, os.fstat(self._directory_fd)):
            return ""
        return f"the data directory {self._path} was moved away and replaced by another"

    def _file_problem(self) -> str:
        """Recreate the lock file if it was deleted, unless another process has locked it since."""
        with suppress(OSError):
            if os.path.samestat((self._path / LOCK).stat(), os.fstat(self._file.fd)):
                return ""
        try:
            file = _lock_file(self._path, self._files)
        except DirectoryInUse as error:
            return str(error)
        except UnavailableError:  # retried next time; the directory itself is locked
            return ""
        logger.warning("lock.restored path=%s: the file was deleted", self._path / LOCK)
        self._files.close(self._file)
        self._file = file
        return ""


def _open_directory(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise as_cordwood(error, "open", path) from error


def _lock_directory(fd: int, path: Path, flock: Callable[[int, int], object]) -> None:
    try:
        _flock(fd, path, flock)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise as_cordwood(error, "lock", path) from error
        logger.warning("lock.file_only path=%s: this file system cannot lock directories", path)


def _lock_file(path: Path, files: Files) -> OpenFile:
    """Open and lock the file and write our process id; retries if the file is replaced."""
    lock_path = path / LOCK
    while True:
        lock = files.open_existing(lock_path) if lock_path.exists() else files.create(lock_path)
        try:
            _flock(lock.fd, path)
            is_named = _is_named(lock)
            if is_named:
                _write_pid(lock, files)
        except OSError as error:
            files.close(lock)
            raise as_cordwood(error, "lock", lock_path) from error
        except BaseException:
            files.close(lock)
            raise
        if is_named:
            return lock
        files.close(lock)  # deleted or replaced between the open and the lock


def _is_named(lock: OpenFile) -> bool:
    try:
        return os.path.samestat(lock.path.stat(), os.fstat(lock.fd))
    except FileNotFoundError:
        return False


def _write_pid(lock: OpenFile, files: Files) -> None:
    with suppress(UnavailableError):  # on a full disk the lock holds, only the pid is missing
        files.truncate(lock, 0)
        files.write_at(lock, f"{os.getpid()}\n".encode(), 0)


def _flock(fd: int, path: Path, flock: Callable[[int, int], object] = fcntl.flock) -> None:
    try:
        flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUse(
            f"data directory {path} is in use by process {_holder(path)}; stop it, or choose "
            "another directory with --data"
        ) from None


def _holder(path: Path) -> str:
    try:
        return (path / LOCK).read_text("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"
