"""The data directory: its lock, its format version, and the names that belong in it.

    format-version    the version of everything beside and below it (``layout``)
    identity          id of this directory, and the nonce of the running broker (``identity``)
    lock              flock'ed, as the directory is, by the one process that may write; its pid
    meta.db           the metadata, with SQLite's -wal and -shm beside it
    <topic>-<n>/      a partition
    <topic>-<n>.<topic id>-delete/   a deleted partition that is still to be removed
    staging/<job>/    results that jobs leave for the broker
    claimed/          segments that the broker took from there, until they are live (``claim``)
    archive/          bundles
    cleaner/          key digests; compaction rebuilds them if they are missing
    pipeline.log      Spark's output; pipeline.log.1 holds the older part

Anything else is foreign: reported at start-up, never read, renamed or removed. A partition
directory that belongs to no topic is foreign too, and no topic can be created over it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cordwood.config import KIB, BrokerConfig
from cordwood.errors import (
    ConfigError,
    CorruptionError,
    DiskFull,
    TopicExists,
    UnavailableError,
    UnknownFormat,
)
from cordwood.log.files.disk import TMP_SUFFIX, Files, as_cordwood
from cordwood.log.files.modes import BY_NAME, OWNER, make_directory, open_with
from cordwood.log.format.identity import IDENTITY, DataIdentity, read_identity
from cordwood.log.format.layout import (
    FORMAT,
    LOCK,
    check_format,
    encode_format,
    parse_directory_name,
)
from cordwood.log.format.manifest import STAGING_NAME
from cordwood.log.lifecycle.directory_lock import DirectoryLock
from cordwood.log.lifecycle.permissions import settle_permissions
from cordwood.log.staging.claim import CLAIMED_NAME
from cordwood.metadata.keys import Topic
from cordwood.model import TopicPartition

META: Final = "meta.db"
ARCHIVE: Final = "archive"
CLEANER: Final = "cleaner"
PIPELINE_LOG: Final = "pipeline.log"
SPACE_BYTES: Final = 64 * KIB  # size of the probe file
NAME_BYTES_MAX: Final = 255  # of one directory entry
_OWN: Final = frozenset(
    {FORMAT, LOCK, META, f"{META}-wal", f"{META}-shm", STAGING_NAME, CLAIMED_NAME, ARCHIVE, CLEANER}
    | {f"{FORMAT}.tmp", IDENTITY, f"{IDENTITY}.tmp", PIPELINE_LOG, f"{PIPELINE_LOG}.1"}
)
_SHARED: Final = frozenset({STAGING_NAME, ARCHIVE, CLEANER})  # where jobs write
_DELETED: Final = re.compile(r".+-\d+\.[0-9a-f]{32}-delete")

logger = logging.getLogger("cordwood.log")


class DataDirectory:
    """A data directory that this process has locked, from ``open`` to ``close``.

    What must be opened under the lock, such as an embedded metadata store, is opened after it.
    """

    def __init__(self, path: Path, files: Files, lock: DirectoryLock) -> None:
        """Prepare a directory that is locked already. Callers use ``open``."""
        _check_format(path, files)
        _prepare_permissions(path, files)
        self.path = path
        self.metadata_path = path / META  # for the embedded metadata store
        self.lock = lock
        self.identity = _renew_identity(path, files)
        self._files = files
        files.check_place = lock.check

    @classmethod
    def open(cls, path: Path, config: BrokerConfig, files: Files) -> DataDirectory:
        """Create the directory if it is missing, lock it, and check its format.

        Raises ``DirectoryInUse`` or ``UnknownFormat``, each with a remedy.
        """
        files.modes = BY_NAME[config.file_mode]
        try:
            _make(path, files)
            lock = DirectoryLock.take(path, files)
        except DiskFull:
            raise
        except UnavailableError as error:
            raise ConfigError(f"{error}; choose another data directory with --data") from error
        try:
            return cls(path, files, lock)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        self._files.check_place = Files.check_place
        self.lock.close()


def _make(path: Path, files: Files) -> None:
    """Create the directory and its parents, and sync each one's parent."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        _make(path.parent, files)
    files.mkdir(path)
    files.sync_dir(path.parent)


def deleted_name(tp: TopicPartition, topic_id: str) -> str:
    """The name of a deleted partition's directory until it is removed, as in Kafka."""
    ending = f"-{tp.partition}.{topic_id.replace('-', '')}-delete"
    return tp.topic[: NAME_BYTES_MAX - len(ending)] + ending


def deleted_directories(path: Path) -> list[Path]:
    """Directories of deleted partitions that are still to be removed."""
    return sorted(entry for entry in path.iterdir() if _DELETED.fullmatch(entry.name))


def foreign_names(path: Path, topics: Iterable[Topic]) -> list[str]:
    """The names in the directory that do not belong to cordwood."""
    partitions = {str(tp) for topic in topics for tp in topic.partition_list()}
    return sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OWN
        and entry.name not in partitions
        and not _DELETED.fullmatch(entry.name)
    )


def _prepare_permissions(path: Path, files: Files) -> None:
    """Apply ``file.mode`` to existing files, ``meta.db``, and the directories jobs write to."""
    names = {entry.name for entry in path.iterdir()}
    own = {n for n in names if n in _OWN or parse_directory_name(n) or _DELETED.fullmatch(n)}
    try:
        settle_permissions(path, files, own, _SHARED)
    except UnavailableError as error:
        logger.warning("permissions.not_changed path=%s error=%s", path, error)
    if META not in names:
        _create_metadata(path / META, files.modes.file)
    if files.modes is not OWNER:
        for name in _SHARED - names:
            make_directory(path / name, files.modes.shared_directory)


def _create_metadata(path: Path, mode: int) -> None:
    """Create an empty ``meta.db``; SQLite creates its other files with the same mode."""
    try:
        os.close(open_with(path, os.O_RDWR | os.O_CREAT, mode))
    except OSError as error:
        raise as_cordwood(error, "create", path) from error


def _renew_identity(path: Path, files: Files) -> DataIdentity:
    """Write the identity with a new nonce for this start; the directory's id stays the same."""
    fresh = DataIdentity.fresh(read_identity(path))
    try:
        files.write_whole(path / IDENTITY, fresh.encode())
    except UnavailableError as error:  # jobs then do not trust the path
        logger.warning("identity.not_written path=%s error=%s", path, error)
        return fresh
    return read_identity(path) or fresh


def check_free(data: Path, name: str, numbers: range) -> None:
    """Refuse a topic name if foreign files are in the way: a new topic starts empty."""
    for number in numbers:
        path = data / f"{name}-{number}"
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise TopicExists(f"{path} exists but belongs to no topic; move it away first")


def has_space(path: Path, files: Files) -> bool:
    """Whether the disk has space for a small file."""
    probe = path / f"space{TMP_SUFFIX}"
    try:
        files.unlink(probe)
        file = files.create(probe)
        try:
            files.write_at(file, bytes(SPACE_BYTES), 0)
            files.sync_data(file)
        finally:
            files.close(file)
            files.unlink(probe)
    except UnavailableError:
        return False
    return True


def _check_format(path: Path, files: Files) -> None:
    """Write the format to a new directory; refuse one that another program wrote."""
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
