"""Claim a job's staged segments, so that no other process can change their bytes.

A swap makes files live that another process wrote. The checked bytes must be the ones that become
live, so the broker first takes the files over, into ``claimed/<job>.<token>/``, a directory that
only the broker writes to, and checks them there. File names come from the manifest, are plain, and
are opened relative to the descriptor of the job's directory without following links (``area``).

A file is moved, without copying, if no other process can write to it afterwards. That holds if all
of these are true:

* The file belongs to the broker's user, so that its new mode, that of live segments, keeps other
  users from writing to it.
* It has one name, the new one: no hard link leads to it from elsewhere.
* No process has it open for writing or mapped writable. The kernel knows: only then does it grant a
  read lease (``F_SETLEASE``).

Otherwise its bytes are copied into a new file. The owner is checked before the move; the link count
and the lease after the move and the change of mode, when other users can no longer open the file by
name.

A process of the broker's own user can still open a claimed file by its path, as it can any live
segment; file permissions cannot prevent that.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from cordwood.errors import InvalidManifest, UnknownJob
from cordwood.log.files.disk import Files
from cordwood.log.format.manifest import (
    MANIFEST_NAME,
    Manifest,
    StagedFile,
    is_job_name,
    parse_manifest,
)
from cordwood.log.staging.area import JobFiles, StagingArea

CLAIMED_NAME: Final = "claimed"
MANIFEST_BYTES_MAX: Final = 64 << 20
COPY_BYTES: Final = 1 << 20
_COPY_SUFFIX: Final = ".copy"


class Claim(NamedTuple):
    """A job's manifest and the directory of its claimed files."""

    manifest: Manifest
    directory: Path


def claim_job(data: Path, job: str, files: Files) -> Claim:
    """Move a finished job's files out of staging; without a manifest raises ``InvalidManifest``.

    After an error some of the files may be gone from staging: the job must run again.
    """
    if not is_job_name(job):
        raise InvalidManifest(f"{job!r} is not a valid job name")
    try:
        with StagingArea(data).job(job) as staged:
            manifest = _read_manifest(staged, job)
            return Claim(manifest, _claim_files(data, staged, manifest, files))
    except UnknownJob as error:
        raise InvalidManifest(str(error)) from None


def release_claim(directory: Path, files: Files) -> None:
    """Remove the files of a claim. No error if there are none."""
    if directory.is_symlink():
        files.unlink(directory)
    elif directory.exists():
        files.rmtree(directory)


def _read_manifest(staged: JobFiles, job: str) -> Manifest:
    try:
        text = staged.read(MANIFEST_NAME, MANIFEST_BYTES_MAX)
    except UnknownJob:
        raise InvalidManifest(f"{staged.path} has no manifest; run the job again") from None
    manifest = parse_manifest(text)
    if manifest.job != job:
        raise InvalidManifest(f"{staged.path} holds the manifest of job {manifest.job}")
    return manifest


def _claim_files(data: Path, staged: JobFiles, manifest: Manifest, files: Files) -> Path:
    files.mkdir(data / CLAIMED_NAME)
    directory = data / CLAIMED_NAME / f"{manifest.job}.{secrets.token_hex(8)}"
    files.mkdir(directory)
    try:
        for segment in manifest.segments:
            for file in segment.files:
                _claim_file(staged, file, directory / file.name, files)
    except BaseException:
        with suppress(Exception):
            release_claim(directory, files)
        raise
    return directory


def _claim_file(staged: JobFiles, file: StagedFile, target: Path, files: Files) -> None:
    fd = staged.open(file.name)
    try:
        if os.fstat(fd).st_size != file.size_bytes:
            raise InvalidManifest(
                f"{staged.path / file.name} does not match the manifest; run the job again"
            )
        if not _is_movable(fd, target.parent):
            _copy(fd, file.size_bytes, target, files)
            return
        files.take(staged.path / file.name, staged.fd, target)
        if not _is_ours_alone(fd, target, files.modes.file):
            _copy(fd, file.size_bytes, target, files)
    finally:
        os.close(fd)


def _is_movable(fd: int, directory: Path) -> bool:
    """Whether it is our user's file, on the same filesystem as ``directory``."""
    opened = os.fstat(fd)
    return opened.st_uid == os.geteuid() and opened.st_dev == directory.stat().st_dev


def _is_ours_alone(fd: int, path: Path, mode: int) -> bool:
    """Whether no other process can write to the open file, just moved to ``path``."""
    os.fchmod(fd, mode)
    opened, named = os.fstat(fd), path.lstat()
    is_same = (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
    return is_same and opened.st_nlink == 1 and not has_writers(fd)


def has_writers(fd: int) -> bool:
    """Whether a process may have the file open for writing; True if the kernel cannot tell.

    ``fd`` must be open for reading only.
    """
    try:
        # If a process opens the file for writing meanwhile, the kernel signals us. The default
        # SIGIO would end the process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (OSError, AttributeError):  # refused, or not Linux
        return True
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _copy(fd: int, size_bytes: int, target: Path, files: Files) -> None:
    """Copy an open file to ``target``, replacing any file there."""
    path = target.with_name(target.name + _COPY_SUFFIX)
    file = files.create(path)
    try:
        position = 0
        while position < size_bytes:
            data = os.pread(fd, min(COPY_BYTES, size_bytes - position), position)
            if not data:
                raise InvalidManifest(f"{target.name} was truncated; run the job again")
            files.write_at(file, data, position)
            position += len(data)
    finally:
        files.close(file)
    files.rename(path, target)
