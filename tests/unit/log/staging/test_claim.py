"""The verified bytes are the ones that become live, even if a job keeps access to its files."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cordwood.errors import InvalidManifest, UnsafePath
from cordwood.log.staging.claim import CLAIMED_NAME, has_writers
from support.stores import TP, a_batch, append_sealed, open_store, stage, values_in

BEFORE = {0: "a", 1: "b", 2: "a", 3: "c"}
AFTER = {1: "b", 2: "a", 3: "c"}
NAME = f"{0:020}.log"


@pytest.fixture
def store(tmp_path):
    opened = open_store(tmp_path / "data")
    opened.create_topic("t", 1)
    append_sealed(opened, "ab", "ac")
    yield opened
    opened.close()


def a_job(store, job="job-1") -> Path:
    """Stage one segment that replaces both sealed segments; return the path of its log."""
    return stage(store, job, [0, 2], {0: [a_batch({1: "b", 2: "a", 3: "c"})]}) / NAME


def live_bytes(store) -> bytes:
    return (store.data / "t-0" / NAME).read_bytes()


def claimed(store) -> list[Path]:
    return [p for p in store.data.glob(f"{CLAIMED_NAME}/*/*") if p.is_file()]


# --- other writers of the file ------------------------------------------------------------------


class Descriptor:
    """A task that keeps its file open for writing."""

    def __init__(self, log):
        self.file = log.open("r+b", buffering=0)

    def write(self):
        os.pwrite(self.file.fileno(), b"forged", 70)

    def close(self):
        self.file.close()


class Mapping(Descriptor):
    """A task that closed its file but keeps a writable memory mapping."""

    def __init__(self, log):
        super().__init__(log)
        self.mapped = mmap.mmap(self.file.fileno(), 0)
        self.file.close()

    def write(self):
        self.mapped[70:76] = b"forged"

    def close(self):
        self.mapped.close()


class HardLink(Descriptor):
    """A task that keeps a second hard link to the file."""

    def __init__(self, log):
        self.path = log.parent.parent / "second-name"
        self.path.hardlink_to(log)

    def write(self):
        with self.path.open("r+b") as file:
            os.pwrite(file.fileno(), b"forged", 70)

    def close(self):
        self.path.unlink()


class Replaced(Descriptor):
    """A task that writes a new file under the same name, as a task that runs twice does."""

    def __init__(self, log):
        self.path = log

    def write(self):
        self.path.write_bytes(b"forged" * 100)

    def close(self):
        """Do nothing: no file is open."""


@pytest.mark.parametrize("holder", [Descriptor, Mapping, HardLink, Replaced])
@pytest.mark.parametrize("moment", ["verified", "applied"])
def test_a_job_changes_no_byte_after_it_was_checked(store, holder, moment):
    """A job cannot change verified bytes, either before the swap or after it."""
    log = a_job(store)
    good = log.read_bytes()
    held = holder(log)
    try:
        verified = store.segments.verify_job("job-1")
        if moment == "verified":
            held.write()
            store.segments.apply_job(verified)
        else:
            store.segments.apply_job(verified)
            if holder is not Replaced:  # the swap removed its directory
                held.write()
    finally:
        held.close()
    assert live_bytes(store) == good
    assert values_in(store.partition(TP)) == AFTER


def test_a_file_that_nobody_else_can_write_is_moved_and_not_copied(store):
    """A file that no other process can write is renamed, so large files are not copied."""
    log = a_job(store)
    log.chmod(0o660)
    inode = log.stat().st_ino
    store.segments.apply_job(store.segments.verify_job("job-1"))
    found = (store.data / "t-0" / NAME).stat()
    assert (found.st_ino, found.st_mode & 0o777) == (inode, 0o600)


def test_staging_on_another_filesystem_is_copied_from(store):
    """If the staging directory is a link to another filesystem, files are copied."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == store.data.stat().st_dev:
            pytest.skip("there is no second filesystem")
        (store.data / "staging").symlink_to(other)
        a_job(store)
        store.segments.apply_job(store.segments.verify_job("job-1"))
        assert list(Path(other).iterdir()) == []
    assert values_in(store.partition(TP)) == AFTER


def test_a_lease_tells_whether_anybody_writes(tmp_path):
    """The check finds an open writer, and leaves no lease that blocks later writers."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    try:
        with path.open("r+b"):
            assert has_writers(fd)
        assert not has_writers(fd)
        with path.open("r+b") as file:
            file.write(b"y")
    finally:
        os.close(fd)


def test_who_opens_a_file_during_the_lease_does_not_end_the_broker(tmp_path):
    """A process that opens the file during the lease does not kill the broker.

    The kernel's default signal for a broken lease, SIGIO, would end the process.
    """
    path = tmp_path / "file"
    path.write_bytes(b"x")
    opener = f"open({str(path)!r}, 'r+b').close()"
    script = f"""
import fcntl, os, subprocess, sys
from cordwood.log.staging import claim
taken = fcntl.fcntl
def slowly(fd, command, argument):
    if command == fcntl.F_SETLEASE and argument == fcntl.F_UNLCK:
        opener = subprocess.Popen([sys.executable, "-c", {opener!r}])
        # the opener waits for the lease; the kernel has then signalled us
        while "lease" not in open(f"/proc/{{opener.pid}}/wchan").read() and opener.poll() is None:
            os.sched_yield()
        result = taken(fd, command, argument)
        opener.wait()
        return result
    return taken(fd, command, argument)
claim.fcntl.fcntl = slowly
print(claim.has_writers(os.open({str(path)!r}, os.O_RDONLY)))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode != -signal.SIGIO, "the lease's signal ended the process"
    assert ended.stdout == b"False\n", ended.stderr


# --- links and special files --------------------------------------------------------------------


@pytest.mark.parametrize("what", ["log", "manifest.json", "job"])
def test_links_in_staging_are_refused(store, tmp_path, what):
    """A link is refused even if the bytes of its target match the manifest."""
    log = a_job(store)
    path = {"log": log, "manifest.json": log.parent / "manifest.json", "job": log.parent}[what]
    elsewhere = tmp_path / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UnsafePath):
        store.segments.verify_job("job-1")
    assert elsewhere.exists()
    assert claimed(store) == []
    assert values_in(store.partition(TP)) == BEFORE


def test_a_fifo_in_staging_is_refused_and_holds_nobody_up(store):
    """A FIFO is refused, and opening it does not wait for a writer."""
    log = a_job(store)
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(UnsafePath):
        store.segments.verify_job("job-1")


def test_a_link_that_takes_the_place_of_the_staging_directory_leads_no_removal_out(store, tmp_path):
    """If a link replaces the job's directory, the swap removes the link and not its target."""
    log = a_job(store)
    verified = store.segments.verify_job("job-1")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep me")
    shutil.rmtree(log.parent)
    log.parent.symlink_to(precious)
    store.segments.apply_job(verified)
    assert (precious / "file").read_text() == "keep me"
    assert not log.parent.is_symlink()


# --- leftover claims ----------------------------------------------------------------------------


def test_a_refused_job_leaves_nothing_claimed(store):
    """A job whose bytes do not match its manifest leaves no claimed files."""
    log = a_job(store)
    log.write_bytes(bytes(len(log.read_bytes())))
    with pytest.raises(InvalidManifest):
        store.segments.verify_job("job-1")
    assert claimed(store) == []


def test_a_start_removes_what_was_claimed_and_never_applied(store):
    """A start removes claimed files that were never applied; the log is unchanged."""
    a_job(store)
    store.segments.verify_job("job-1")
    assert len(claimed(store)) == 1
    store.close()
    again = open_store(store.data)
    assert not (store.data / CLAIMED_NAME).exists()
    assert values_in(again.partition(TP)) == BEFORE
    again.close()


def test_a_second_check_of_a_job_cannot_reach_the_files_of_the_first(store):
    """A job staged again under the same name gets a new claim; the first claim is unchanged."""
    good = a_job(store).read_bytes()
    first = store.segments.verify_job("job-1")
    shutil.rmtree(store.data / "staging" / "job-1")
    stage(store, "job-1", [0, 2], {0: [a_batch({3: "x"})]})
    second = store.segments.verify_job("job-1")
    store.segments.apply_job(first)
    assert live_bytes(store) == good
    store.segments.release_jobs([second])
    assert claimed(store) == []
