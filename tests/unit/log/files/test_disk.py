"""Operations that change the disk, and the cache of file descriptors for reading."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from cordwood.errors import DiskFull, TooManyOpenFiles, UnavailableError
from cordwood.log.files.disk import Files
from cordwood.log.files.file_cache import FileCache
from support.crash import Crash, CrashFiles, FullDisk, Power


def test_a_file_is_replaced_whole(tmp_path):
    """``write_whole`` replaces an existing file and the leftover of a failed attempt."""
    path = tmp_path / "checkpoint"
    (tmp_path / "checkpoint.tmp").write_bytes(b"left by a crash, and longer")
    for data in (b"one", b"two and more", b""):
        Files().write_whole(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_then_name_then_directory(tmp_path):
    """A replacement syncs the data, then renames the file, then syncs the directory."""
    files = CrashFiles(tmp_path)
    files.write_whole(tmp_path / "a", b"x")
    assert [(e.name, e.path.name) for e in files.effects] == [
        ("create", "a.tmp"),
        ("write", "a.tmp"),
        ("sync_data", "a.tmp"),
        ("rename", "a"),
        ("sync_dir", tmp_path.name),
    ]


@pytest.mark.parametrize("power", [None, *Power])
def test_a_replaced_file_is_old_or_new_after_any_crash(tmp_path, power):
    """After a crash the file has either its old or its new content, complete."""
    for after in range(6):
        root = tmp_path / str(after)
        root.mkdir()
        (root / "a").write_bytes(b"old")
        files = CrashFiles(root, after)
        try:
            files.write_whole(root / "a", b"new and longer")
        except Crash:
            assert after < 5
        if power:
            files.power_off(power)
        expected = {b"new and longer"} if after == 5 else {b"old", b"new and longer"}
        assert (root / "a").read_bytes() in expected


def test_a_short_write_goes_on(tmp_path):
    """After a short write the remaining bytes are written."""

    class Dripping(Files):
        def pwrite(self, fd, view, position):
            return super().pwrite(fd, view[:3], position)

    files = Dripping()
    file = files.create(tmp_path / "a")
    files.write_at(file, b"0123456789", 0)
    files.close(file)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_no_space_is_disk_full_and_names_the_file(tmp_path):
    """A full disk raises ``DiskFull``, also after a short write."""
    files = FullDisk(4)
    file = files.create(tmp_path / "a")
    with pytest.raises(DiskFull, match=r"write .*a: No space left"):
        files.write_at(file, b"0123456789", 0)
    files.close(file)
    assert (tmp_path / "a").read_bytes() == b"0123"


def test_other_refusals_are_unavailable_and_name_the_file(tmp_path):
    """Any other error of the operating system names the operation and the file."""
    with pytest.raises(UnavailableError, match=r"create .*nowhere"):
        Files().create(tmp_path / "nowhere" / "a")
    with pytest.raises(UnavailableError, match="open"):
        Files().open_existing(tmp_path / "a")
    (tmp_path / "b").touch()
    with pytest.raises(UnavailableError, match="File exists"):
        Files().create(tmp_path / "b")


def test_a_tree_is_removed(tmp_path):
    """``rmtree`` removes the whole tree; it removes links and does not follow them."""
    root = tmp_path / "t"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").touch()
    (tmp_path / "kept").mkdir()
    (root / "link").symlink_to(tmp_path / "kept")
    Files().rmtree(root)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


# --- descriptors --------------------------------------------------------------------------------


def opener(path):
    return lambda: os.open(path, os.O_RDONLY)


def test_descriptors_are_reused_and_bounded(tmp_path):
    """The cache closes the least recently used descriptor first."""
    pool = FileCache(idle_max=2)
    paths = [tmp_path / str(i) for i in range(3)]
    for path in paths:
        path.write_text(path.name)
    opened = []

    def counting(path):
        def open_file():
            opened.append(path.name)
            return os.open(path, os.O_RDONLY)

        return open_file

    for i in (0, 1, 0, 2, 0, 1):
        with pool.lease(i, counting(paths[i])) as fd:
            assert os.pread(fd, 10, 0).decode() == str(i)
        assert pool.open_count <= 2
    assert opened == ["0", "1", "2", "1"]
    pool.close()
    assert pool.open_count == 0


def test_a_leased_descriptor_outlives_its_eviction(tmp_path):
    """An evicted descriptor stays open until its last reader releases it."""
    pool = FileCache(idle_max=1)
    for name in "ab":
        (tmp_path / name).write_text(name)
    with pool.lease("a", opener(tmp_path / "a")) as fd:
        with pool.lease("b", opener(tmp_path / "b")):
            pass
        pool.forget("a")
        assert os.pread(fd, 1, 0) == b"a"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    pool.close()


def test_many_threads_never_read_from_anothers_file(tmp_path):
    """A leased descriptor is not closed, so its number cannot be reused for another file."""
    pool = FileCache(idle_max=2)
    for i in range(8):
        (tmp_path / str(i)).write_bytes(bytes([i]) * 100)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for step in range(400):
            i = (seed * 7 + step * 3) % 8
            with pool.lease(i, opener(tmp_path / str(i))) as fd:
                if os.pread(fd, 100, 0) != bytes([i]) * 100:
                    wrong.append(i)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    pool.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_running_out_of_descriptors_names_the_limit_and_the_remedy(tmp_path, number):
    """Running out of descriptors is a separate error, because the same call may succeed later."""

    class Files24(Files):
        def effect(self, name, path, act):
            return super().effect(name, path, lambda: _refuse(number))

    with pytest.raises(TooManyOpenFiles, match=r"the limit is \d+; raise it with `ulimit -n`"):
        Files24().create(tmp_path / "a")


def _refuse(number):
    raise OSError(number, os.strerror(number))
