"""Every operation that changes the disk, and none that reads it.

These are the only calls in cordwood that create, write, sync, rename or remove a file of the data
directory. Each is one *effect* with a name and a path, and all pass through ``Files.effect``. That
is the seam at which tests stop the process after the n-th effect, drop unsynced data, or fill the
disk (``tests/support/crash.py``). So every crash point has a name: (effect, path, nth).

An error of the operating system becomes ``DiskFull`` (no space, quota, file size limit) or
``UnavailableError`` (anything else), always with the path. A short write is not an error: a full
disk first writes a part and then fails, so ``write_at`` repeats the call until all is written or
one fails.

Two rules its callers rely on:

* A file's *bytes* are durable after ``sync_data``; its *name* is durable after ``sync_dir`` of the
  directory. A new or renamed file needs both.
* A failed sync is final. The kernel may drop the dirty pages and report success the next time, so
  a second ``sync_data`` proves nothing; see ``Partition.sync``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from cordwood.errors import DiskFull, TooManyOpenFiles, UnavailableError
from cordwood.log.files.modes import OWNER, Modes, make_directory, open_with

T = TypeVar("T")

TMP_SUFFIX: Final = ".tmp"
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
_FALLOC_FL_KEEP_SIZE: Final = 1
_sync_bytes = getattr(os, "fdatasync", os.fsync)


class OpenFile(NamedTuple):
    """A descriptor and the path it was opened by, so that every error can name the path."""

    fd: int
    path: Path


class Files:
    """The effects. One instance serves a whole data directory."""

    check_place: Callable[[], None] = staticmethod(lambda: None)
    """Called before a name changes; raises when the directory at that path is not ours any more."""

    modes: Modes = OWNER  # of new files and directories, from ``file.mode``

    def name_effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Do an effect on a path, after checking that the path still leads to our directory.

        Effects on a descriptor need no such check.
        """
        self.check_place()
        return self.effect(name, path, act)

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Do one effect; every change to the disk passes here, with its name."""
        try:
            return act()
        except OSError as error:
            raise as_cordwood(error, name, path) from error

    # --- files -----------------------------------------------------------------------------

    def create(self, path: Path) -> OpenFile:
        """Create an empty file, open for reading and writing; fails if it exists."""
        return self.name_effect("create", path, lambda: OpenFile(self._create(path), path))

    def _create(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if self.modes is OWNER:  # any usual umask keeps the owner's bits
            return os.open(path, flags, OWNER.file)
        return open_with(path, flags, self.modes.file)

    def open_existing(self, path: Path) -> OpenFile:
        """Open an existing file for reading and writing; changes nothing."""
        try:
            return OpenFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)
        except OSError as error:
            raise as_cordwood(error, "open", path) from error

    def close(self, file: OpenFile) -> None:
        """Close the descriptor; changes nothing."""
        os.close(file.fd)

    def write_at(self, file: OpenFile, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position``; on an error a part may have been written."""
        self.effect("write", file.path, lambda: self._write_all(file, data, position))

    def _write_all(
        self, file: OpenFile, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        with memoryview(data) as view:
            written = self.pwrite(file.fd, view, position)
            while written < len(view):
                written += self.pwrite(file.fd, view[written:], position + written)

    def pwrite(self, fd: int, view: memoryview, position: int) -> int:
        """Do one system call; tests make it write less or fail."""
        return os.pwrite(fd, view, position)

    def truncate(self, file: OpenFile, size_bytes: int) -> None:
        """Truncate the file to ``size_bytes``."""
        self.effect("truncate", file.path, lambda: os.ftruncate(file.fd, size_bytes))

    def preallocate(self, file: OpenFile, size_bytes: int) -> None:
        """Reserve space for a file to grow to ``size_bytes``; its length does not change.

        Does nothing on a file system that cannot do this.
        """
        self.effect("preallocate", file.path, lambda: _reserve(file.fd, size_bytes))

    def sync_data(self, file: OpenFile) -> None:
        """Return once the file's bytes and length are on the device."""
        self.effect("sync_data", file.path, lambda: _sync_bytes(file.fd))

    def write_whole(
        self, path: Path, data: bytes, *, sync_data: bool = True, sync_dir: bool = True
    ) -> None:
        """Replace a small file atomically: readers and crashes see the old one or the new one.

        With ``sync_dir=False`` the caller syncs the directory itself, once for several files. With
        ``sync_data=False`` a power cut may leave any content: only for files that their reader can
        rebuild.
        """
        tmp = path.with_name(path.name + TMP_SUFFIX)
        if tmp.exists():
            self.unlink(tmp)
        file = self.create(tmp)
        try:
            self.write_at(file, data, 0)
            if sync_data:
                self.sync_data(file)
        finally:
            self.close(file)
        self.rename(tmp, path)
        if sync_dir:
            self.sync_dir(path.parent)

    # --- names -----------------------------------------------------------------------------

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file atomically, replacing any file with the new name."""
        self.name_effect("rename", new, lambda: self.move(old, new))

    def take(self, old: Path, old_directory: int, new: Path) -> None:
        """Rename a file out of a directory that others write to, given by its descriptor."""
        self.name_effect("rename", new, lambda: self.move(old, new, old_directory))

    def move(self, old: Path, new: Path, old_directory: int | None = None) -> None:
        """Do the rename itself; tests record which file went where."""
        if old_directory is None:
            old.replace(new)
        else:
            os.replace(old.name, new, src_dir_fd=old_directory)

    def unlink(self, path: Path) -> None:
        """Remove a file. No error if it is missing."""
        self.name_effect("unlink", path, lambda: path.unlink(missing_ok=True))

    def mkdir(self, path: Path) -> None:
        """Create a directory. No error if it exists; the parent must exist."""
        self.name_effect("mkdir", path, lambda: make_directory(path, self.modes.directory))

    def chmod(self, path: Path, mode: int) -> None:
        """Change the mode of a file or directory."""
        self.name_effect("chmod", path, lambda: path.chmod(mode))

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        self.name_effect("rmdir", path, path.rmdir)

    def rmtree(self, path: Path) -> None:
        """Remove a directory and everything in it, one effect per name."""
        for child in sorted(path.iterdir()):
            if child.is_dir() and not child.is_symlink():
                self.rmtree(child)
            else:
                self.unlink(child)
        self.rmdir(path)

    def sync_dir(self, path: Path) -> None:
        """Return once the names in the directory are on the device."""
        self.effect("sync_dir", path, lambda: _sync_directory(path))


def as_cordwood(error: OSError, effect: str, path: Path) -> UnavailableError:
    """The cordwood error for an ``OSError``, with the effect and the path."""
    if error.errno in _NO_DESCRIPTOR:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return TooManyOpenFiles(
            f"{effect} {path}: {error.strerror}, the limit is {limit}; raise it with `ulimit -n` "
            "or systemd's LimitNOFILE"
        )
    if error.errno in _NO_SPACE:
        return DiskFull(f"{effect} {path}: {error.strerror}; free space on that filesystem")
    return UnavailableError(f"{effect} {path}: {error.strerror}")


def _reserve(fd: int, size_bytes: int) -> None:
    fallocate = getattr(_libc(), "fallocate", None)  # Linux only
    if fallocate is None:
        return
    fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
    if fallocate(fd, _FALLOC_FL_KEEP_SIZE, 0, size_bytes):
        code = ctypes.get_errno()
        if code not in _NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
