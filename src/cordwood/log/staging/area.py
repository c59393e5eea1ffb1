"""The staging area: files that jobs write below ``<data>/staging``.

Staged files are opened, created and removed only here; a swap moves its files out before they are
checked (``claim``). A job and its files have plain names (``is_job_name``: no slash, no leading
dot), and every name is opened relative to the descriptor of its directory, without following links.
Only regular files and directories of the broker's own user are accepted; where the staging
directory is writable by its group, also those of that group. So no name that another process sends
or writes can lead elsewhere, and a link that another process leaves there is refused, even if it
appears between two checks.

All calls block. They change nothing outside ``staging``.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from cordwood.errors import RequestError, UnavailableError, UnknownJob, UnsafePath
from cordwood.log.files.modes import like, make_shared_directory
from cordwood.log.format.manifest import STAGING_NAME, is_job_name

NOT_FOLLOWED: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EMLINK})
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO does not block
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GROUP_WRITE: Final = 0o020
_SHA256: Final = re.compile("[0-9a-f]{64}")


class Leftover(NamedTuple):
    """A job's directory and how long nothing in it has changed."""

    job: str
    idle_ms: int


class FileIdentity(NamedTuple):
    """Identifies a file and its state, to detect whether it was replaced or changed."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """From a ``stat`` result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class StagingArea:
    """The staged jobs of one data directory."""

    def __init__(self, data: Path) -> None:
        """Opens nothing; the directory need not exist."""
        self.directory = data / STAGING_NAME

    @contextmanager
    def job(self, name: str) -> Iterator[JobFiles]:
        """Open a job's files; raises ``UnknownJob`` if it staged none."""
        check_name(name, "job")
        with self._opened() as root, JobFiles(self.directory / name, *self._open(root, name)) as it:
            yield it

    @contextmanager
    def new_job(self, name: str) -> Iterator[JobFiles]:
        """Open a job's files; its directory is created if missing."""
        check_name(name, "job")
        make_shared_directory(self.directory)
        mode = like(self.directory).shared_directory
        with self._opened() as root:
            with suppress(FileExistsError), _named(self.directory / name):
                os.mkdir(name, mode, dir_fd=root)
                os.chmod(name, mode, dir_fd=root)  # the umask may have removed bits
            with JobFiles(self.directory / name, *self._open(root, name)) as files:
                yield files

    def remove(self, name: str) -> None:
        """Remove a job's files, or a link in their place. No error if there are none."""
        check_name(name, "job")
        with suppress(UnknownJob), self._opened() as root:
            status = _look(root, name)
            if status is not None and not stat.S_ISDIR(status.st_mode):
                with suppress(OSError):
                    os.unlink(name, dir_fd=root)
            elif status is not None:
                shutil.rmtree(name, ignore_errors=True, dir_fd=root)

    def sync(self) -> None:
        """Make the names of the jobs durable."""
        with self._opened() as root, _named(self.directory):
            os.fsync(root)

    def leftovers(self, now_ms: int) -> list[Leftover]:
        """Every job that has staged files, with the time since its newest file changed."""
        try:
            with self._opened() as root:
                jobs = [name for name in os.listdir(root) if is_job_name(name)]  # noqa: PTH208
                ages = [(job, _newest_ns(root, job)) for job in jobs]
        except UnknownJob:
            return []
        return [Leftover(job, now_ms - at_ns // 10**6) for job, at_ns in ages if at_ns is not None]

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory of all jobs; an operator may have made it a symbolic link."""
        with _named(self.directory):
            root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield root
        finally:
            os.close(root)

    def _open(self, root: int, name: str) -> tuple[int, Owners]:
        owners = Owners.of(os.fstat(root))
        path = self.directory / name
        with _named(path):
            fd = os.open(name, _DIRECTORY, dir_fd=root)
        try:
            owners.check(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd, owners


class Owners(NamedTuple):
    """The users and the group whose files are accepted."""

    users: tuple[int, ...]
    group: int | None  # set if it may write to the staging directory

    @classmethod
    def of(cls, staging: os.stat_result) -> Owners:
        """This user, the staging directory's owner, and its group if the group may write."""
        is_shared = bool(staging.st_mode & _GROUP_WRITE)
        return cls((os.geteuid(), staging.st_uid), staging.st_gid if is_shared else None)

    def check(self, path: Path, status: os.stat_result) -> None:
        """Raise ``UnsafePath`` for a file of any other user or group."""
        if status.st_uid not in self.users and status.st_gid != self.group:
            raise UnsafePath(
                f"{path} belongs to user {status.st_uid}, who may not stage files here; run the "
                "job as the broker's user, or let it send its files over HTTP"
            )

    def check_file(self, path: Path, status: os.stat_result) -> None:
        """Raise ``UnsafePath`` unless it is a regular file of theirs."""
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath(f"{path} is not a regular file; remove it and run the job again")
        self.check(path, status)


class JobFiles:
    """One job's open directory; every file is opened relative to it."""

    def __init__(self, path: Path, fd: int, owners: Owners) -> None:
        """Take over an open directory, which is closed with this object."""
        self.path = path
        self.fd = fd
        self._owners = owners

    def open(self, name: str) -> int:
        """Open a regular file of this job for reading; the caller closes it."""
        return self._open(name, os.O_RDONLY)

    def create(self, name: str) -> int:
        """Open a file for writing and truncate it, since a task may run twice."""
        fd = self._open(name, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, 0)
            if os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, like(self.path).shared_file)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def write(self, name: str, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write a whole file atomically: a reader sees the old one, the new one or none."""
        temporary = f"{check_name(name, 'file')[:100]}.{secrets.token_hex(4)}.tmp"
        with os.fdopen(self.create(temporary), "wb") as file, _named(self.path / name):
            file.writelines(pieces)
        with _named(self.path / name):
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def identity(self, name: str) -> FileIdentity:
        """The identity of the file with this name; raises ``UnknownJob`` if there is none."""
        fd = self.open(name)
        try:
            return FileIdentity.of(os.fstat(fd))
        finally:
            os.close(fd)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Read a small file; raises ``RequestError`` if it is larger than ``bytes_max``."""
        with os.fdopen(self.open(name), "rb") as file, _named(self.path / name):
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise RequestError(f"{self.path / name} has more than {bytes_max} bytes")
        return data

    def sync(self, name: str) -> None:
        """Make a file's bytes durable; its writer may have been on another machine."""
        fd = self.open(name)
        try:
            with _named(self.path / name):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_names(self) -> None:
        """Make the names of this job's files durable."""
        with _named(self.path):
            os.fsync(self.fd)

    def _open(self, name: str, flags: int) -> int:
        path = self.path / check_name(name, "file")
        with _named(path):
            fd = os.open(name, flags | _FILE, 0o600, dir_fd=self.fd)
        try:
            self._owners.check_file(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directory."""
        os.close(self.fd)


def sha256_of(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """The sha256 of these pieces, one after the other."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)  # releases the GIL
    return digest.hexdigest()


def check_sha256(sha256: str, name: str) -> str:
    """Return the hash unchanged; raises ``RequestError`` if it is none."""
    if not _SHA256.fullmatch(sha256):
        raise RequestError(
            f"the sha256 of {name} is {sha256[:80]!r}; expected are 64 hexadecimal digits"
        )
    return sha256


def check_name(name: Any, kind: str) -> str:
    """Return a plain name unchanged; raises ``RequestError`` if it could lead elsewhere."""
    if not isinstance(name, str) or not is_job_name(name):
        raise RequestError(f"{name!r} is not a valid {kind} name; use letters, digits, . _ and -")
    return name


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into ours, naming the path."""
    try:
        yield
    except FileNotFoundError:
        raise UnknownJob(f"{path} was not staged; run the job again") from None
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in NOT_FOLLOWED:
            raise UnsafePath(
                f"{path} is a link or not a regular file; remove it and run the job again"
            ) from None
        raise UnavailableError(f"{path}: {error.strerror}") from error


def _look(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _newest_ns(root: int, job: str) -> int | None:
    """When anything in a job's directory last changed; None if it is gone or no directory."""
    status = _look(root, job)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return None
    newest = status.st_mtime_ns
    for _, names, files, fd in os.fwalk(job, dir_fd=root, follow_symlinks=False):
        looks = (_look(fd, name) for name in (*names, *files))
        newest = max([newest, *(each.st_mtime_ns for each in looks if each is not None)])
    return newest
