"""The directory lock: one process may write a data directory, even if its files are renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat

import pytest

from cordwood.decide.roll import RollReason
from cordwood.errors import DirectoryInUse, UnavailableError
from cordwood.log.files.disk import Files
from cordwood.log.format.layout import LOCK
from cordwood.log.lifecycle.directory_lock import DirectoryLock
from cordwood.log.read.held import is_held
from support.stores import TP, append, open_store, values_in


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "data")
    opened.create_topic("t", 1)
    append(opened.partition(TP), "a")
    yield opened
    opened.close()


def refuse_directories(fd: int, operation: int) -> None:
    """Behave like ``flock`` on NFS, which refuses directories."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise OSError(errno.EBADF, "Bad file descriptor")
    fcntl.flock(fd, operation)


def test_deleting_the_lock_file_admits_no_second_writer(store):
    """The directory itself is locked, so deleting the lock file does not admit a second writer."""
    (store.data / LOCK).unlink()
    with pytest.raises(DirectoryInUse, match="in use by process unknown"):
        open_store(store.data)
    assert not (store.data / LOCK).exists(), "who is refused changes nothing"


def test_replacing_the_lock_file_admits_no_second_writer(store):
    """The directory stays locked if another file replaces the lock file."""
    (store.data / LOCK).unlink()
    (store.data / LOCK).write_text("1\n")
    with pytest.raises(DirectoryInUse, match="in use by process 1;"):
        open_store(store.data)


def test_a_broker_that_holds_only_the_lock_file_is_respected(tmp_path):
    """Older brokers lock only the lock file; that lock is respected too."""
    open_store(tmp_path / "data").close()
    with (tmp_path / "data" / LOCK).open("r+") as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUse):
            open_store(tmp_path / "data")
    open_store(tmp_path / "data").close()


def test_a_file_system_that_locks_no_directories_has_the_file(tmp_path, caplog):
    """If directories cannot be locked, the lock file alone is used, and a warning is logged."""
    lock = DirectoryLock.take(tmp_path, Files(), refuse_directories)
    assert "lock.file_only" in caplog.text
    with pytest.raises(DirectoryInUse, match=str(os.getpid())):
        DirectoryLock.take(tmp_path, Files(), refuse_directories)
    assert lock.problem() == ""
    lock.close()
    DirectoryLock.take(tmp_path, Files(), refuse_directories).close()


def test_a_deleted_lock_file_is_made_again(store):
    """The holder recreates a deleted lock file with its process ID and locks it."""
    (store.data / LOCK).unlink()
    assert store.directory.lock.problem() == ""
    assert (store.data / LOCK).read_text() == f"{os.getpid()}\n"
    with (store.data / LOCK).open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_file_that_another_process_took_is_a_problem(store):
    """If another process locks a recreated lock file, the holder reports a problem."""
    (store.data / LOCK).unlink()
    with (store.data / LOCK).open("w+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "in use by process" in store.directory.lock.problem()


@pytest.mark.parametrize("accident", ["moved", "replaced", "removed"])
def test_a_broker_writes_no_name_into_a_directory_that_is_not_its_own(store, accident):
    """If its data directory is moved, replaced or removed, the broker creates no files in it."""
    assert store.directory.lock.problem() == ""
    if accident == "removed":
        shutil.rmtree(store.data)
    else:
        store.data.rename(store.data.with_name("away"))
    if accident == "replaced":
        other = open_store(store.data)
        other.create_topic("t", 1)
        other.close()
    with pytest.raises(UnavailableError, match="the data directory"):
        store.segments.roll(store.partition(TP), RollReason.DEMAND)
    assert "the data directory" in store.directory.lock.problem()
    if accident == "replaced":
        other = open_store(store.data)
        assert values_in(other.partition(TP)) == {}
        other.close()


def test_readers_of_files_see_the_holder_without_a_lock_file(store):
    """Readers of the files detect the broker by its lock, with or without the lock file."""
    for delete in (False, True):
        if delete:
            (store.data / LOCK).unlink()
        fds: list[int] = []
        assert is_held(store.data, shared_fds=fds)
        for fd in fds:
            os.close(fd)
    store.close()
    fds = []
    assert not is_held(store.data, shared_fds=fds)
    with pytest.raises(DirectoryInUse):
        open_store(store.data)
    for fd in fds:
        os.close(fd)
