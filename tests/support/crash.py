"""A disk that stops: ``CrashFiles`` counts effects, dies after the n-th, and may lose power.

    files = CrashFiles(root, after=3)       # the fourth effect never happens
    with pytest.raises(Crash): story(files)
    files.power_off(Power.DROP)             # or leave it: a killed process keeps the page cache
    # open ``root`` again with plain ``Files`` and look

A crash point has a name: ``files.point`` is ``(effect, path, nth)`` of the effect that did not
happen, ``files.effects`` all that did. After the crash every further effect raises too, so a
``finally`` of the code under test cannot tidy up what a dead process could not.

Power loss is modelled from what was synced, file by file and directory by directory: bytes without
``sync_data`` and names without ``sync_dir`` may be lost. Which of them really are differs between
filesystems, so there are several ways to lose power, and code must survive each.
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
    """The process is dead. Nothing may catch this but a test."""


class Power(Enum):
    """What is left of what was not synced."""

    DROP = "no unsynced byte, no unsynced name"
    NAMES = "every name, but no unsynced byte"
    HALF = "every name, and the first half of the unsynced bytes of each file"
    ZEROS = "every name, and zeros instead of the unsynced bytes"


class Effect(NamedTuple):
    """One change of the disk."""

    name: str
    path: Path


class QuickFiles(Files):
    """Files whose syncs do nothing: what a test does not lose power over need not wait for one."""

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Do it, unless it is a sync."""
        if name in {"sync_data", "sync_dir"}:
            return None  # type: ignore[return-value]
        return super().effect(name, path, act)

    def create(self, path: Path) -> OpenFile:
        """Remembered, as ``close`` may never come."""
        return self._hold(super().create(path))

    def open_existing(self, path: Path) -> OpenFile:
        """Remembered, too."""
        return self._hold(super().open_existing(path))

    def close(self, file: OpenFile) -> None:
        """Given back in the usual way."""
        self._held.discard(file)
        super().close(file)

    @cached_property
    def _held(self) -> set[OpenFile]:
        """What is open; a process that dies gives all of it back, and so does this when it goes."""
        held: set[OpenFile] = set()
        weakref.finalize(self, _close_all, held)
        return held

    def _hold(self, file: OpenFile) -> OpenFile:
        self._held.add(file)
        return file


def _close_all(held: set[OpenFile]) -> None:
    """Only what is still that file: others may have closed it, and its number be another's."""
    for fd, path in held:
        link = Path(f"/proc/self/fd/{fd}")
        if link.is_symlink() and str(link.readlink()).removesuffix(" (deleted)") == str(path):
            os.close(fd)


class CrashFiles(QuickFiles):
    """Files under ``root`` that stop after ``after`` effects; None never stops."""

    def __init__(self, root: Path, after: int | None = None, *, tear: bool = False) -> None:
        """``tear`` lets the write that does not happen happen by half."""
        self.root = root
        self.after = after
        self.tear = tear
        self.effects: list[Effect] = []
        self.point: tuple[str, str, int] | None = None
        self._one_at_a_time = threading.RLock()  # partitions are closed side by side
        self._ids = count()
        self._live: dict[Path, int] = {}
        self._live_dirs: set[Path] = set()
        self._bytes: dict[int, bytes] = {}  # what each file certainly holds
        self._names: dict[Path, int] = {}  # what certainly has a name
        self._dirs: set[Path] = set()
        self._moved_dirs: list[tuple[Path, Path]] = []  # renamed, and the parent not yet synced
        self._take_stock()

    def _take_stock(self) -> None:
        """Whatever was there before is durable."""
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                self._live_dirs.add(path)
            else:
                self._live[path] = next(self._ids)
                self._bytes[self._live[path]] = path.read_bytes()
        self._names, self._dirs = dict(self._live), set(self._live_dirs)

    # --- the seam ---------------------------------------------------------------------------

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Do it and remember it, unless the time has come."""
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
        """Only half of it when it tears."""
        if self.point is None:
            return super().pwrite(fd, view, position)
        os.pwrite(fd, view[: len(view) // 2], position)
        return len(view)

    def move(self, old: Path, new: Path, old_directory: int | None = None) -> None:
        """A rename takes the file along."""
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
                if path not in self._live:  # somebody else's, such as a job's staged file
                    self._live[path] = next(self._ids)
                self._bytes[self._live[path]] = path.read_bytes()
            case "sync_dir":
                self._sync_moves(path)
                self._names = _synced(self._names, self._live, path)
                children = {p for p in self._live_dirs if p.parent == path}
                self._dirs = {p for p in self._dirs if p.parent != path} | children

    def _sync_moves(self, directory: Path) -> None:
        """Directories take along what they certainly hold, or end with it."""
        for old, new in [m for m in self._moved_dirs if m[1].parent == directory]:
            self._moved_dirs.remove((old, new))
            for path in [p for p in self._names if old in p.parents]:
                self._names[new / path.relative_to(old)] = self._names.pop(path)
            self._dirs = {new / p.relative_to(old) if old in (p, *p.parents) else p
                          for p in self._dirs}  # fmt: skip
        gone = [p for p in self._dirs if p.parent == directory and p not in self._live_dirs]
        self._names = {p: i for p, i in self._names.items() if not set(gone) & set(p.parents)}

    # --- power ------------------------------------------------------------------------------

    def power_off(self, power: Power) -> None:
        """Leave on disk only what survives; files this object never saw stay as they are."""
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
    """A disk with ``left_bytes`` free: a short write first, and then none."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def pwrite(self, fd: int, view: memoryview, position: int) -> int:
        """As much as fits; none is ENOSPC."""
        if self.left_bytes <= 0:
            raise OSError(28, "No space left on device")
        written = super().pwrite(fd, view[: self.left_bytes], position)
        self.left_bytes -= written
        return written


class FailingFiles(Files):
    """Refuses the effects named in ``refused`` with an I/O error."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.under = ""  # only what is, or lies in, a file or directory of this name; "": all
        self.seen: list[str] = []

    def effect(self, name: str, path: Path, act: Callable[[], T]) -> T:
        """Refuse, or do it."""
        self.seen.append(name)

        def attempt() -> T:
            if name in self.refused and is_under(path, self.under):
                raise OSError(5, "Input/output error")
            return act()

        return super().effect(name, path, attempt)


def is_under(path: Path, name: str) -> bool:
    """Whether a part of the path has this name, whatever suffix follows it; any path for "".

    Whole names: a test's own directory may be ``pytest-0``, which holds ``t-0`` but is not it.
    """
    return not name or any(part == name or part.startswith(name + ".") for part in path.parts)
