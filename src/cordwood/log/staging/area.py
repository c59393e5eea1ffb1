"""The staging area: files of jobs, found by name below ``<data>/staging`` and nowhere else.

Staged files are opened, created and removed only here; a swap takes its own out of it before they
are checked (``claim``). A job and its files are known by
plain names (``is_job_name``: no slash, no leading dot), and every name is opened relative to the
descriptor of the directory that holds it, without following links. What is opened is a regular
file, or a directory, of the broker's own user; where the staging directory is writable by its
group, also of that group. So no name that another process sends or writes down leads anywhere else,
and a link that another process leaves there is refused, also if it appears between two looks.

Plain calls that block. They change nothing outside ``staging``.
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
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO does not block its opener
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GROUP_WRITE: Final = 0o020
_SHA256: Final = re.compile("[0-9a-f]{64}")


class Leftover(NamedTuple):
    """A job's directory, and how long nothing in it has changed."""

    job: str
    idle_ms: int


class FileIdentity(NamedTuple):
    """Which file it is, and that it is unchanged since it was looked at."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        """From a look at the file."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class StagingArea:
    """The jobs of one data directory."""

    def __init__(self, data: Path) -> None:
        """Nothing is opened yet, and nothing need be there."""
        self.directory = data / STAGING_NAME

    @contextmanager
    def job(self, name: str) -> Iterator[JobFiles]:
        """A job's files; raises ``UnknownJob`` when it staged none."""
        check_name(name, "job")
        with self._opened() as root, JobFiles(self.directory / name, *self._open(root, name)) as it:
            yield it

    @contextmanager
    def new_job(self, name: str) -> Iterator[JobFiles]:
        """A job's files, in a directory that is made when there is none."""
        check_name(name, "job")
        make_shared_directory(self.directory)
        mode = like(self.directory).shared_directory
        with self._opened() as root:
            with suppress(FileExistsError), _named(self.directory / name):
                os.mkdir(name, mode, dir_fd=root)
                os.chmod(name, mode, dir_fd=root)  # the umask may have taken bits away
            with JobFiles(self.directory / name, *self._open(root, name)) as files:
                yield files

    def remove(self, name: str) -> None:
        """Forget a job's files; a job that staged none, or a link in its place, is as good."""
        check_name(name, "job")
        with suppress(UnknownJob), self._opened() as root:
            found = _look(root, name)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                with suppress(OSError):
                    os.unlink(name, dir_fd=root)
            elif found is not None:
                shutil.rmtree(name, ignore_errors=True, dir_fd=root)

    def sync(self) -> None:
        """Make the names of jobs durable."""
        with self._opened() as root, _named(self.directory):
            os.fsync(root)

    def leftovers(self, now_ms: int) -> list[Leftover]:
        """Every job that has staged something; its newest file tells when it was last at work."""
        try:
            with self._opened() as root:
                jobs = [name for name in os.listdir(root) if is_job_name(name)]  # noqa: PTH208
                ages = [(job, _newest_ns(root, job)) for job in jobs]
        except UnknownJob:
            return []
        return [Leftover(job, now_ms - at_ns // 10**6) for job, at_ns in ages if at_ns is not None]

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The directory of all jobs; where an operator put it behind a link, the link holds."""
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
    """Whose files are believed."""

    users: tuple[int, ...]
    group: int | None  # where the group may write to the staging directory

    @classmethod
    def of(cls, staging: os.stat_result) -> Owners:
        """This process's user, and who the staging directory was made for."""
        is_shared = bool(staging.st_mode & _GROUP_WRITE)
        return cls((os.geteuid(), staging.st_uid), staging.st_gid if is_shared else None)

    def check(self, path: Path, found: os.stat_result) -> None:
        """Raise ``UnsafePath`` for somebody else's file."""
        if found.st_uid not in self.users and found.st_gid != self.group:
            raise UnsafePath(
                f"{path} belongs to user {found.st_uid}, who may not stage files here; run the "
                "job as the broker's user, or let it send its files over HTTP"
            )

    def check_file(self, path: Path, found: os.stat_result) -> None:
        """Raise ``UnsafePath`` for anything but a regular file of theirs."""
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePath(f"{path} is no regular file; remove it and run the job again")
        self.check(path, found)


class JobFiles:
    """One job's directory, held open: every file is reached through it."""

    def __init__(self, path: Path, fd: int, owners: Owners) -> None:
        """From an open directory; it is closed with this object."""
        self.path = path
        self.fd = fd
        self._owners = owners

    def open(self, name: str) -> int:
        """A regular file of this job for reading; whoever asks closes it."""
        return self._open(name, os.O_RDONLY)

    def create(self, name: str) -> int:
        """The same for writing, empty; a task that runs twice may write it twice."""
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
        """A whole file; whoever reads meanwhile finds the old one, the new one or none."""
        temporary = f"{check_name(name, 'file')[:100]}.{secrets.token_hex(4)}.tmp"
        with os.fdopen(self.create(temporary), "wb") as file, _named(self.path / name):
            file.writelines(pieces)
        with _named(self.path / name):
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def identity(self, name: str) -> FileIdentity:
        """Which file has this name now; raises ``UnknownJob`` when none has."""
        fd = self.open(name)
        try:
            return FileIdentity.of(os.fstat(fd))
        finally:
            os.close(fd)

    def read(self, name: str, bytes_max: int) -> bytes:
        """A small file whole; raises ``RequestError`` when it is larger."""
        with os.fdopen(self.open(name), "rb") as file, _named(self.path / name):
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise RequestError(f"{self.path / name} has more than {bytes_max} bytes")
        return data

    def sync(self, name: str) -> None:
        """Make a file's bytes durable: who staged it may sit on another machine."""
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
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        os.close(self.fd)


def sha256_of(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """Of a file made of these pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)  # without the GIL
    return found.hexdigest()


def check_sha256(sha256: str, name: str) -> str:
    """A hash, as it came; raises ``RequestError`` for anything else."""
    if not _SHA256.fullmatch(sha256):
        raise RequestError(
            f"the sha256 of {name} is {sha256[:80]!r}; it takes the file's, 64 hexadecimal digits"
        )
    return sha256


def check_name(name: Any, kind: str) -> str:
    """A plain name, as it came; raises ``RequestError`` for one that could lead elsewhere."""
    if not isinstance(name, str) or not is_job_name(name):
        raise RequestError(f"{name!r} is no {kind} name; use letters, digits, . _ and -")
    return name


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the operating system refuses, in words that name the path."""
    try:
        yield
    except FileNotFoundError:
        raise UnknownJob(f"{path} was not staged; run the job again") from None
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in NOT_FOLLOWED:
            raise UnsafePath(
                f"{path} is a link or no regular file; remove it and run the job again"
            ) from None
        raise UnavailableError(f"{path}: {error.strerror}") from error


def _look(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _newest_ns(root: int, job: str) -> int | None:
    """When anything in a job's directory last changed; None when it is gone, or is none."""
    found = _look(root, job)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return None
    newest = found.st_mtime_ns
    for _, names, files, fd in os.fwalk(job, dir_fd=root, follow_symlinks=False):
        looks = (_look(fd, name) for name in (*names, *files))
        newest = max([newest, *(each.st_mtime_ns for each in looks if each is not None)])
    return newest
