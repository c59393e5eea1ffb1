"""Where an archive lies: a directory (a tape's LTFS mount is one) or an object store, by URL.

Six things are asked of a depot: read a file, write one whole, move it, remove it, say whether it is
there, and list names. A written file is durable, and never seen half written under its name.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.tasks import naming

_COPY_BYTES: Final = 1 << 20
_REASON_CHARS: Final = 300
_PART: Final = ".part"  # a file being written; no name of ours ends so


class Depot(Protocol):
    """Named files, wherever they are."""

    place: str

    def open(self, name: str) -> IO[bytes]:
        """A file for reading; raises ``FileNotFoundError``."""
        ...

    def put(self, name: str, source: IO[bytes]) -> None:
        """Write a file whole, over whatever had its name."""
        ...

    def move(self, old: str, new: str) -> None:
        """Give a file another name."""
        ...

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        ...

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Every file below a prefix, in order."""
        ...

    def held(self, name: str) -> Any:
        """A context that one process at a time is in, as far as the place allows."""
        ...


def open_depot(place: str) -> Depot:
    """By directory or URL; small enough to be opened again by every task."""
    if "://" not in place:
        return DirectoryDepot(place)
    return ObjectDepot(place)


class DirectoryDepot:
    """Files under a directory."""

    def __init__(self, place: str) -> None:
        self._root = Path(place).absolute()
        self.place = str(self._root)

    def open(self, name: str) -> IO[bytes]:
        """A file for reading."""
        return (self._root / name).open("rb")

    def put(self, name: str, source: IO[bytes]) -> None:
        """Under a temporary name, synced, then renamed."""
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + _PART)
        try:
            with naming(part), part.open("wb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk is not filled further by what cannot be finished
            part.unlink(missing_ok=True)
            raise
        part.replace(target)
        _sync(target.parent)

    def move(self, old: str, new: str) -> None:
        """One rename, synced at both ends."""
        target = self._root / new
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._root / old).replace(target)
        _sync(target.parent)
        _sync((self._root / old).parent)

    def remove(self, name: str) -> None:
        """Unlink it."""
        (self._root / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return (self._root / name).is_file()

    def names(self, prefix: str = "") -> list[str]:
        """Every finished file below a prefix."""
        found = (path for path in (self._root / prefix).rglob("*") if path.is_file())
        return sorted(
            str(path.relative_to(self._root))
            for path in found
            if path.suffix not in {_PART, ".lock"}
        )

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """By a lock on a file beside it."""
        lock = self._root / f"{name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnavailableError(
                    f"another run is at work on {self._root / name}; wait for it, then try again"
                ) from None
            yield


class ObjectDepot:
    """Objects under a URL, through ``obstore``."""

    def __init__(self, place: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise ConfigError(
                f'{place} is an object store, which needs obstore: run `pip install "cordwood[s3]"`'
            ) from None
        self._api: Any = obstore
        self._error = BaseError
        self.place = place.rstrip("/")
        if place.startswith("file://"):
            Path(place.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        try:
            self._store: Any = from_url(self.place)
        except Exception as error:  # noqa: BLE001 - whatever the library makes of a bad URL
            raise ConfigError(f"{place} is no object store: {error}") from None

    def open(self, name: str) -> IO[bytes]:
        """An object for reading, block by block."""
        with self._asking():
            self._api.head(self._store, name)  # raises FileNotFoundError now, not when it is read
            reader = self._api.open_reader(self._store, name)
        return io.BufferedReader(_Reader(reader, self._asking), _COPY_BYTES)

    def put(self, name: str, source: IO[bytes]) -> None:
        """An object appears whole."""
        with self._asking(is_there=True):
            self._api.put(self._store, name, source)

    def move(self, old: str, new: str) -> None:
        """A copy and a deletion, where the store has no rename."""
        with self._asking():
            self._api.rename(self._store, old, new)

    def remove(self, name: str) -> None:
        """Delete it; a store says nothing of an object that was not there."""
        with suppress(FileNotFoundError), self._asking():
            self._api.delete(self._store, name)

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        try:
            with self._asking():
                self._api.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def names(self, prefix: str = "") -> list[str]:
        """Every object below a prefix."""
        with self._asking():
            found = self._api.list(self._store, prefix or None)
            return sorted(str(each["path"]) for chunk in found for each in chunk)

    @contextmanager
    def _asking(self, *, is_there: bool = False) -> Iterator[None]:
        """What the store refuses is one sentence; that an object is not there stays itself."""
        try:
            yield
        except (self._error, OSError) as error:
            if isinstance(error, FileNotFoundError) and not is_there:
                raise
            raise UnavailableError(
                f"{self.place}: {_reason(str(error))}; look at the URL, the credentials and the "
                "endpoint (docs/archive.md), then run this again"
            ) from None

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """An object store has no lock; the broker refuses the slower of two runs."""
        del name
        yield


class _Reader(io.RawIOBase):
    """An object as a file is to whoever buffers it."""

    def __init__(self, inner: Any, asking: Callable[[], AbstractContextManager[None]]) -> None:
        self._inner = inner
        self._asking = asking

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        with self._asking():
            found = memoryview(self._inner.read(len(room)))
        room[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _reason(said: str) -> str:
    """What a store says, without the pages around it: its own message, or the first line."""
    told = re.search(r"<Message>(.*?)</Message>", said, re.DOTALL)
    return told[1] if told else said.strip().partition("\n")[0][:_REASON_CHARS]


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
