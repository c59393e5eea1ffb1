"""The data directory as one process holds it: the lock, the format, and what else lies in it.

    format-version    what wrote everything beside and below it (``layout``)
    lock              flock'ed by the one process that may write; holds its pid
    meta.db           the catalog, with SQLite's -wal and -shm beside it
    <topic>-<n>/      a partition
    <topic>-<n>.<topic id>-delete/   a deleted partition on its way out
    staging/<job>/    results that wait for the gate
    archive/          bundles
    cleaner/          key digests, which compaction makes again when they are gone
    pipeline.log      what Spark said, and before that in pipeline.log.1

Anything else is foreign: reported at start-up, never read, renamed or removed. A partition's
directory that belongs to no topic is foreign too, and no topic can be created over it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cordwood.errors import (
    ConfigError,
    CorruptionError,
    DirectoryInUse,
    DiskFull,
    UnavailableError,
    UnknownFormat,
)
from cordwood.log.files import Files, OpenFile, as_cordwood
from cordwood.log.layout import FORMAT, LOCK, check_format, encode_format
from cordwood.log.manifest import STAGING_NAME
from cordwood.meta.keys import Topic
from cordwood.model import TopicPartition

META: Final = "meta.db"
ARCHIVE: Final = "archive"
CLEANER: Final = "cleaner"
PIPELINE_LOG: Final = "pipeline.log"
NAME_BYTES_MAX: Final = 255  # of one directory entry
_OWN: Final = frozenset(
    {FORMAT, LOCK, META, f"{META}-wal", f"{META}-shm", STAGING_NAME, ARCHIVE, CLEANER}
    | {f"{FORMAT}.tmp", PIPELINE_LOG, f"{PIPELINE_LOG}.1"}
)
_DOOMED: Final = re.compile(r".+-\d+\.[0-9a-f]{32}-delete")


def open_directory(path: Path, files: Files) -> OpenFile:
    """Lock the directory, made if missing, and check its format; the open file is the lock.

    Raises ``DirectoryInUse`` or ``UnknownFormat``, each with what to do.
    """
    try:
        _make(path, files)
        lock = _lock(path, files)
    except DiskFull:
        raise
    except UnavailableError as error:
        raise ConfigError(f"{error}; choose another data directory with --data") from error
    try:
        _check_format(path, files)
    except BaseException:
        files.close(lock)
        raise
    return lock


def _make(path: Path, files: Files) -> None:
    """The directory and those above it, each durable in its parent."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        _make(path.parent, files)
    files.mkdir(path)
    files.sync_dir(path.parent)


def doomed_name(tp: TopicPartition, topic_id: str) -> str:
    """What a deleted partition's directory is called until it is gone, as Kafka calls it."""
    ending = f"-{tp.partition}.{topic_id.replace('-', '')}-delete"
    return tp.topic[: NAME_BYTES_MAX - len(ending)] + ending


def doomed_directories(path: Path) -> list[Path]:
    """Directories of deleted partitions that are still there."""
    return sorted(entry for entry in path.iterdir() if _DOOMED.fullmatch(entry.name))


def foreign_names(path: Path, topics: Iterable[Topic]) -> list[str]:
    """Everything in the directory that is not ours."""
    partitions = {str(tp) for topic in topics for tp in topic.partition_list()}
    return sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OWN
        and entry.name not in partitions
        and not _DOOMED.fullmatch(entry.name)
    )


def _lock(path: Path, files: Files) -> OpenFile:
    lock_path = path / LOCK
    lock = files.open_existing(lock_path) if lock_path.exists() else files.create(lock_path)
    try:
        _take(lock, path)
        with suppress(UnavailableError):  # on a full disk the lock holds, only the pid is missing
            files.truncate(lock, 0)
            files.write_at(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        files.close(lock)
        raise
    return lock


def _take(lock: OpenFile, path: Path) -> None:
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock.fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise DirectoryInUse(
            f"data directory {path} is in use by process {holder}; stop it, or choose another "
            "directory with --data"
        ) from None
    except OSError as error:
        raise as_cordwood(error, "lock", lock.path) from error


def _check_format(path: Path, files: Files) -> None:
    """Write the format into a new directory; refuse one that somebody else's program wrote."""
    format_path = path / FORMAT
    try:
        check_format(format_path.read_bytes(), path)
    except FileNotFoundError:
        if (path / META).exists():
            raise UnknownFormat(
                f"{path} has a {META} but no {FORMAT}: it was not written by cordwood, or is "
                "damaged; restore that file or choose another directory with --data"
            ) from None
        files.write_whole(format_path, encode_format())
    except OSError as error:
        raise CorruptionError(f"{format_path} cannot be read: {error.strerror}") from error
