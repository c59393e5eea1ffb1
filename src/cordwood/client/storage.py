"""Storage of archives and tables: a directory (such as an LTFS mount) or an object store, by URL.

It can read a file, write a complete one, move, remove, ask for a size and list names. A written
file is durable, and never visible under its name before it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

from cordwood.errors import ConfigError, UnavailableError
from cordwood.extras import install_command
from cordwood.log.files.modes import like, make_shared_directory, open_shared, open_with

_COPY_BYTES: Final = 1 << 20
_REASON_CHARS: Final = 300
PART: Final = ".part"  # suffix of a file being written; no finished file has it
PROBES: Final = "probes"  # directory of files that prove the storage is shared by all machines
_LEFT_S: Final = 24 * 3600.0  # without a lock, files older than this were left by a crashed run
SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "file")


class Storage(Protocol):
    """Named files in one location."""

    place: str

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; raise ``FileNotFoundError`` if it is missing."""
        ...

    def put(self, name: str, source: IO[bytes]) -> None:
        """Write a complete file; it replaces any file of that name."""
        ...

    def move(self, old: str, new: str) -> None:
        """Rename a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; no error if it is missing."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size in bytes; None if the file is missing."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Return every file below a prefix, sorted."""
        ...

    def sweep(self, prefix: str, keep: Callable[[str], bool]) -> None:
        """Remove what crashed runs left below a prefix, except the names that ``keep`` accepts.

        Call it inside ``held``. A store without locks may be in use by another run, so only files
        that are a day old are removed.
        """
        ...

    def held(self, name: str) -> Any:
        """Return a context that admits one process at a time, if the storage has locks."""
        ...


def read_small(storage: Storage, name: str) -> bytes | None:
    """The content of a small file; None if it is missing."""
    try:
        with closing(storage.open(name)) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_storage(place: str) -> Storage:
    """Open a directory or URL; cheap enough for every task to open its own."""
    scheme, is_url, _ = place.partition("://")
    if not is_url:
        return DirectoryStorage(place)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{place} is not an object store URL; such URLs begin with {', '.join(SCHEMES)}"
        )
    return ObjectStorage(place)


class DirectoryStorage:
    """Files in a directory."""

    def __init__(self, place: str) -> None:
        self._root = Path(place).absolute()
        self.place = str(self._root)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; anything else, such as a pipe, counts as missing."""
        path = self._root / name
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "Not a regular file", str(path))
        return os.fdopen(fd, "rb")

    def put(self, name: str, source: IO[bytes]) -> None:
        """Write to a temporary name, fsync, then rename."""
        target = self._root / name
        make_shared_directory(target.parent)
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART}")  # unique per call
        try:
            with naming(part), open_shared(part) as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # do not leave an incomplete file on a full disk
            part.unlink(missing_ok=True)
            raise
        part.replace(target)
        _sync(target.parent)

    def move(self, old: str, new: str) -> None:
        """Rename, and fsync both directories."""
        target = self._root / new
        make_shared_directory(target.parent)
        (self._root / old).replace(target)
        _sync(target.parent)
        _sync((self._root / old).parent)

    def remove(self, name: str) -> None:
        """Unlink the file."""
        (self._root / name).unlink(missing_ok=True)

    def size(self, name: str) -> int | None:
        """Return the size from the file system."""
        path = self._root / name
        return path.stat().st_size if path.is_file() else None

    def names(self, prefix: str = "") -> list[str]:
        """Return every finished file below a prefix."""
        return sorted(
            str(path.relative_to(self._root))
            for path in (self._root / prefix).rglob("*")
            if path.is_file() and path.suffix not in {PART, ".lock"}
        )

    def sweep(self, prefix: str, keep: Callable[[str], bool]) -> None:
        """Remove incomplete files and empty directories too."""
        for path in sorted((self._root / prefix).rglob("*"), reverse=True):
            name = str(path.relative_to(self._root))
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # not empty: it contains files that are kept
                    path.rmdir()
            elif path.suffix != ".lock" and not keep(name):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            (self._root / prefix).rmdir()

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold an ``flock`` on a lock file next to it."""
        lock = self._root / f"{name}.lock"
        make_shared_directory(lock.parent)
        flags, mode = os.O_RDWR | os.O_CREAT, like(lock.parent).shared_file
        with os.fdopen(open_with(lock, flags, mode), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnavailableError(
                    f"another run is working on {self._root / name}; wait until it ends, then try "
                    "again"
                ) from None
            yield


class ObjectStorage:
    """Objects under a URL, through ``obstore``."""

    def __init__(self, place: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise ConfigError(
                f"{place} is an object store, which needs obstore: run `{install_command('s3')}`"
            ) from None
        self._api: Any = obstore
        self._error = BaseError
        self.place = place.rstrip("/")
        if place.startswith("file://"):
            Path(place.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        try:
            self._store: Any = from_url(self.place)
        except Exception as error:  # noqa: BLE001 - the library raises various errors for a bad URL
            raise ConfigError(f"{place} is not an object store: {error}") from None

    def open(self, name: str) -> IO[bytes]:
        """Open an object for reading in blocks."""
        with self._plain_errors():
            self._api.head(self._store, name)  # raises FileNotFoundError now, not at the first read
            reader = self._api.open_reader(self._store, name)
        return io.BufferedReader(_Reader(reader, self._plain_errors), _COPY_BYTES)

    def put(self, name: str, source: IO[bytes]) -> None:
        """Write an object; it becomes visible only when complete."""
        with self._plain_errors(is_there=True):
            self._api.put(self._store, name, source)

    def move(self, old: str, new: str) -> None:
        """Rename; the store may do it as a copy and a delete."""
        with self._plain_errors():
            self._api.rename(self._store, old, new)

    def remove(self, name: str) -> None:
        """Delete the object; no error if it is missing."""
        with suppress(FileNotFoundError), self._plain_errors():
            self._api.delete(self._store, name)

    def size(self, name: str) -> int | None:
        """Return the size from the store."""
        try:
            with self._plain_errors():
                return int(self._api.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def names(self, prefix: str = "") -> list[str]:
        """Return every object below a prefix, sorted."""
        return sorted(str(each["path"]) for each in self._objects(prefix))

    def sweep(self, prefix: str, keep: Callable[[str], bool]) -> None:
        """Remove objects by the age that the store reports."""
        before_s = time.time() - _LEFT_S
        for each in self._objects(prefix):
            if each["last_modified"].timestamp() < before_s and not keep(str(each["path"])):
                self.remove(str(each["path"]))

    def _objects(self, prefix: str) -> list[Any]:
        with self._plain_errors():
            pages = self._api.list(self._store, prefix or None)
            return [each for page in pages for each in page]

    @contextmanager
    def _plain_errors(self, *, is_there: bool = False) -> Iterator[None]:
        """Turn errors of the store into one sentence; ``FileNotFoundError`` passes through."""
        try:
            yield
        except (self._error, OSError) as error:
            if isinstance(error, FileNotFoundError) and not is_there:
                raise
            raise UnavailableError(
                f"{self.place}: {_reason(str(error))}; check the URL, the credentials and the "
                "endpoint (docs/archive.md), then run the command again"
            ) from None

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """An object store has no lock; if two runs compete, the broker refuses the slower one."""
        del name
        yield


class _Reader(io.RawIOBase):
    """A raw file interface to an object, for ``io.BufferedReader``."""

    def __init__(self, inner: Any, plain_errors: Callable[[], Any]) -> None:
        self._inner = inner
        self._plain_errors = plain_errors

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._plain_errors():
            data = memoryview(self._inner.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _reason(text: str) -> str:
    """Extract the message from a store's error: its own message element, or the first line."""
    message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
    return message[1] if message else text.strip().partition("\n")[0][:_REASON_CHARS]


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Add the path to an ``OSError`` that names no file, such as that of a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(place)
        raise


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
