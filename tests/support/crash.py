"""File access that crashes: ``CrashFiles`` counts effects, stops after the n-th and may lose power.

    files = CrashFiles(root, after=3)       # the fourth effect never happens
    with pytest.raises(Crash): story(files)
    files.power_off(Power.DROP)             # optional: a killed process keeps the page cache
    # open ``root`` again with plain ``Files`` and check it

A crash point has a name: ``files.point`` is ``(effect, path, nth)`` of the effect that did not
happen, and ``files.effects`` lists all that did. After the crash every further effect raises too,
so a ``finally`` of the code under test cannot clean up what a dead process could not.

Power loss is modelled from what was synced, file by file and directory by directory: bytes without
``sync_data`` and names without ``sync_dir`` may be lost. Filesystems differ in what they really
lose, so there are several ways to lose power, and the code must survive each.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from cordwood.log.files.disk import Files, OpenFile

T = TypeVar("T")


class Crash(BaseException):
    """The process is dead. Only tests may catch this."""


class Power(Enum):
    """What survives of data that was not synced."""

    DROP = "no unsynced byte, no unsynced name"
    NAMES = "every name, but no unsynced byte"
    HALF = "every name, and the first half of the unsynced bytes of each file"
    ZEROS = "every name, and zeros instead of the unsynced bytes"


class Effect(NamedTuple):
    """One change on disk."""

    name: str
    path: Path


class QuickFiles(Files):
    """Files without fsync, for tests that do not model a power loss."""

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Perform the effect, unless it is an fsync."""
        if name in {"sync_data", "sync_dir"}:
            return None  # type: ignore[return-value]
        return super().effect(name, path, act)

    def create(self, path: Path) -> OpenFile:
        """Create a file and remember its descriptor, because ``close`` may never be called."""
        return self._hold(super().create(path))

    def open_existing(self, path: Path) -> OpenFile:
        """Open a file and remember its descriptor."""
        return self._hold(super().open_existing(path))

    def close(self, file: OpenFile) -> None:
        """Close a file and forget its descriptor."""
        self._held.discard(file)
        super().close(file)

    @cached_property
    def _held(self) -> set[OpenFile]:
        """Open descriptors, closed when this object is collected, as if the process died."""
        held: set[OpenFile] = set()
        weakref.finalize(self, _close_all, held)
        return held

    def _hold(self, file: OpenFile) -> OpenFile:
        self._held.add(file)
        return file


def _close_all(held: set[OpenFile]) -> None:
    """Close only descriptors that still refer to the same file; the number may be reused."""
    for fd, path in held:
        link = Path(f"/proc/self/fd/{fd}")
        if link.is_symlink() and str(link.readlink()).removesuffix(" (deleted)") == str(path):
            os.close(fd)


class CrashFiles(QuickFiles):
    """Files under ``root`` that crash after ``after`` effects; ``None`` never crashes."""

    def __init__(self, root: Path, after: int | None = None, *, tear: bool = False) -> None:
        """With ``tear``, half of the write at the crash point reaches the file."""
        self.root = root
        self.after = after
        self.tear = tear
        self.effects: list[Effect] = []
        self.point: tuple[str, str, int] | None = None
        self._one_at_a_time = threading.RLock()  # partitions are closed in parallel
        self._ids = count()
        self._live: dict[Path, int] = {}
        self._live_dirs: set[Path] = set()
        self._bytes: dict[int, bytes] = {}  # the synced bytes of each file
        self._names: dict[Path, int] = {}  # the synced names
        self._dirs: set[Path] = set()
        self._moved_dirs: list[tuple[Path, Path]] = []  # renamed, with the parent not yet synced
        self._take_stock()

    def _take_stock(self) -> None:
        """Everything that exists at the start is durable."""
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                self._live_dirs.add(path)
            else:
                self._live[path] = next(self._ids)
                self._bytes[self._live[path]] = path.read_bytes()
        self._names, self._dirs = dict(self._live), set(self._live_dirs)

    # --- effects ----------------------------------------------------------------------------

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Perform and record the effect, or crash if the limit is reached."""
        with self._one_at_a_time:
            if self.point is not None:
                raise Crash(f"dead since {self.point}")
            if len(self.effects) == self.after:
                nth = sum(effect == (name, path) for effect in self.effects) + 1
                self.point = name, path.name, nth
                if self.tear and name == "write":
                    act()
                raise Crash(f"at {self.point}")
            result = super().effect(name, path, act)
            self.effects.append(Effect(name, path))
            self._remember(name, path)
            return result

    def pwrite(self, fd: int, view: memoryview, position: int) -> int:
        """Write only half if this write is torn."""
        if self.point is None:
            return super().pwrite(fd, view, position)
        os.pwrite(fd, view[: len(view) // 2], position)
        return len(view)

    def move(self, old: Path, new: Path, old_directory: int | None = None) -> None:
        """A rename moves the file and, for a directory, everything inside it."""
        super().move(old, new, old_directory)
        if old in self._live:
            self._live[new] = self._live.pop(old)
        if old in self._live_dirs:
            self._moved_dirs.append((old, new))
        for path in [p for p in self._live if old in p.parents]:
            self._live[new / path.relative_to(old)] = self._live.pop(path)
        for path in [p for p in self._live_dirs if p == old or old in p.parents]:
            self._live_dirs.discard(path)
            self._live_dirs.add(new / path.relative_to(old))

    def _remember(self, name: str, path: Path) -> None:
        match name:
            case "create":
                self._live[path] = next(self._ids)
            case "unlink":
                self._live.pop(path, None)
            case "mkdir":
                self._live_dirs.add(path)
            case "rmdir":
                self._live_dirs.discard(path)
            case "rmtree":
                self._live = {p: i for p, i in self._live.items() if path not in p.parents}
                self._live_dirs = {p for p in self._live_dirs if path not in (p, *p.parents)}
            case "sync_data":
                if path not in self._live:  # a file of another writer, such as a job's staged file
                    self._live[path] = next(self._ids)
                self._bytes[self._live[path]] = path.read_bytes()
            case "sync_dir":
                self._sync_moves(path)
                self._names = _synced(self._names, self._live, path)
                children = {p for p in self._live_dirs if p.parent == path}
                self._dirs = {p for p in self._dirs if p.parent != path} | children

    def _sync_moves(self, directory: Path) -> None:
        """Apply synced renames and removals of directories to the durable names."""
        for old, new in [m for m in self._moved_dirs if m[1].parent == directory]:
            self._moved_dirs.remove((old, new))
            for path in [p for p in self._names if old in p.parents]:
                self._names[new / path.relative_to(old)] = self._names.pop(path)
            self._dirs = {new / p.relative_to(old) if old in (p, *p.parents) else p
                          for p in self._dirs}  # fmt: skip
        gone = [p for p in self._dirs if p.parent == directory and p not in self._live_dirs]
        self._names = {p: i for p, i in self._names.items() if not set(gone) & set(p.parents)}

    # --- power loss -------------------------------------------------------------------------

    def power_off(self, power: Power) -> None:
        """Leave on disk only what survives; files unknown to this object stay as they are."""
        found = {file_id: path.read_bytes() for path, file_id in self._live.items()}
        names, dirs = (
            (self._names, self._dirs) if power is Power.DROP else (self._live, self._live_dirs)
        )
        for path in [p for p in self._live if p not in names]:
            path.unlink(missing_ok=True)
        for path in sorted(self._live_dirs - dirs, reverse=True):
            shutil.rmtree(path, ignore_errors=True)
        for path in sorted(dirs):
            if all(parent in dirs for parent in path.parents if parent.is_relative_to(self.root)
                   and parent != self.root):  # fmt: skip
                path.mkdir(exist_ok=True)
        for path, file_id in names.items():
            if path.parent.is_dir():
                durable = self._bytes.get(file_id, b"")
                path.write_bytes(_left(durable, found.get(file_id, durable), power))


def _synced(names: dict[Path, int], live: dict[Path, int], directory: Path) -> dict[Path, int]:
    kept = {path: file_id for path, file_id in names.items() if path.parent != directory}
    return kept | {path: file_id for path, file_id in live.items() if path.parent == directory}


def _left(durable: bytes, found: bytes, power: Power) -> bytes:
    extra = len(found) - len(durable)
    if extra <= 0 or power in {Power.DROP, Power.NAMES}:
        return durable
    if power is Power.ZEROS:
        return durable + bytes(extra)
    return durable + found[len(durable) : len(durable) + (extra + 1) // 2]


class FullDisk(QuickFiles):
    """A disk with ``left_bytes`` free: one short write, then ENOSPC."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def pwrite(self, fd: int, view: memoryview, position: int) -> int:
        """Write as many bytes as fit; raise ENOSPC if none do."""
        if self.left_bytes <= 0:
            raise OSError(28, "No space left on device")
        written = super().pwrite(fd, view[: self.left_bytes], position)
        self.left_bytes -= written
        return written


class FailingFiles(Files):
    """Fails the effects named in ``refused`` with an I/O error."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.under = ""  # only paths with a component of this name; "" means all
        self.seen: list[str] = []

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Raise an I/O error or perform the effect."""
        self.seen.append(name)

        def attempt() -> T:
            if name in self.refused and is_under(path, self.under):
                raise OSError(5, "Input/output error")
            return act()

        return super().effect(name, path, attempt)


def is_under(path: Path, name: str) -> bool:
    """Return whether a path component has this name, with any suffix; "" matches any path.

    It compares whole names: ``pytest-0`` contains ``t-0`` but does not match it.
    """
    return not name or any(part == name or part.startswith(name + ".") for part in path.parts)
