"""The staging area: no name or link leads out of it, and files of other users are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cordwood.errors import RequestError, UnavailableError, UnknownJob, UnsafePath
from cordwood.log.staging import area as staging_module
from cordwood.log.staging.area import Owners, StagingArea, check_name


@pytest.fixture
def area(tmp_path) -> StagingArea:
    """A staging area with one job and one file, and a secret file next to the staging directory."""
    made = StagingArea(tmp_path / "data")
    (tmp_path / "data").mkdir()
    with made.new_job("job") as files:
        files.write("file", [b"one ", b"two"])
    (tmp_path / "data" / "secret").write_bytes(b"secret")
    return made


def read(area, job="job", name="file"):
    with area.job(job) as files:
        return files.read(name, 100)


def test_what_is_staged_is_read(area):
    """A staged file is read by its job name and its file name."""
    assert read(area) == b"one two"
    with area.job("job") as files:
        files.sync("file")
        files.sync_names()
        assert files.identity("file").size_bytes == 7


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../secret", "a/b", "/etc/passwd", ".hidden", "a\n", "a\0", "x" * 129, 7],
)
def test_only_plain_names_are_taken(area, name):
    """Every operation refuses a job name or file name that is not a plain name."""
    with pytest.raises(RequestError, match="not a valid job name"), area.job(name):
        pass
    with pytest.raises(RequestError, match="not a valid job name"), area.new_job(name):
        pass
    with pytest.raises(RequestError, match="not a valid job name"):
        area.remove(name)
    with area.job("job") as files:
        for use in (files.open, files.create, files.identity, files.sync):
            with pytest.raises(RequestError, match="not a valid file name"):
                use(name)
        with pytest.raises(RequestError, match="not a valid file name"):
            files.write(name, [])
    with pytest.raises(RequestError):
        check_name(name, "job")


@pytest.mark.parametrize("target", ["../../secret", "/etc/hostname", "file"])
def test_a_link_is_refused_and_what_it_names_is_left_alone(area, target):
    """A symbolic link is never followed, even to a file of the same job; a write replaces it."""
    (area.directory / "job" / "link").symlink_to(target)
    with area.job("job") as files:
        for use in (files.open, files.create, files.identity, files.sync):
            with pytest.raises(UnsafePath, match="is a link or not a regular file"):
                use("link")
        files.write("link", [b"new"])  # replaces the link
    assert read(area, name="link") == b"new"
    assert (area.directory.parent / "secret").read_bytes() == b"secret"
    assert read(area) == b"one two"


def test_a_job_that_is_a_link_is_refused_and_removing_it_removes_the_link(area, tmp_path):
    """A job directory that is a link is refused; removing the job does not touch the target."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"not staged")
    (area.directory / "linked").symlink_to(elsewhere)
    for use in (area.job, area.new_job):
        with pytest.raises(UnsafePath), use("linked"):
            pass
    area.remove("linked")
    assert not (area.directory / "linked").is_symlink()
    assert (elsewhere / "file").read_bytes() == b"not staged"


def test_a_directory_that_changes_while_it_is_open_changes_nothing(area, tmp_path):
    """Names are resolved in the directory that was opened, even if its path is replaced."""
    with area.job("job") as files:
        (area.directory / "job").rename(tmp_path / "moved")
        (area.directory / "job").symlink_to(area.directory.parent)
        assert files.read("file", 100) == b"one two"
        with pytest.raises(UnknownJob):
            files.read("secret", 100)


def test_what_is_no_regular_file_is_refused_at_once(area):
    """A FIFO or a directory is refused; opening the FIFO does not block."""
    os.mkfifo(area.directory / "job" / "fifo")
    (area.directory / "job" / "directory").mkdir()
    with area.job("job") as files:
        for name in ("fifo", "directory"):
            with pytest.raises(UnsafePath):
                files.open(name)


def test_somebody_elses_file_is_refused_unless_the_group_may_stage(area):
    """A file of another user is accepted only if it has the group that may write to staging."""
    found = os.stat_result((0o100644, 0, 0, 1, 1001, 2002, 0, 0, 0, 0))
    own, shared = Owners((1,), None), Owners((1,), 2002)
    with pytest.raises(UnsafePath, match="belongs to user 1001"):
        own.check_file(Path("x"), found)
    shared.check_file(Path("x"), found)
    area.directory.chmod(0o770)
    assert Owners.of(area.directory.stat()).group == area.directory.stat().st_gid
    area.directory.chmod(0o700)
    assert Owners.of(area.directory.stat()).group is None


def test_a_foreign_owner_is_noticed_on_the_job_and_on_the_file(area, monkeypatch):
    """Reading is refused if the owner may not stage files."""
    monkeypatch.setattr(staging_module.Owners, "of", classmethod(lambda cls, _: cls((-5,), None)))
    with pytest.raises(UnsafePath, match="may not stage files here"):
        read(area)


def test_a_file_larger_than_asked_for_is_refused(area):
    """A read refuses a file that exceeds its byte limit."""
    with area.job("job") as files, pytest.raises(RequestError, match="more than 3 bytes"):
        files.read("file", 3)


def test_what_the_disk_refuses_names_the_path(area, monkeypatch):
    """An I/O error names the path and is not reported as a missing file."""

    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    with area.job("job") as files:
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError, match="job/file: Input/output error"):
            files.open("file")


def test_no_other_module_opens_a_staged_file():
    """Only these modules name the staging directory.

    Of these, ``log.staging.area`` opens staged files, ``log.lifecycle.directory`` lists data
    directories, and those in ``pipeline`` run in the job's process, which writes the staged
    segments.
    """
    root = Path(staging_module.__file__).parents[2]
    using = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "STAGING_NAME" in path.read_text() or '"staging"' in path.read_text()
    }
    assert using == {
        "log/format/manifest.py",
        "log/lifecycle/directory.py",
        "log/staging/area.py",
        "pipeline/compact/pass_files.py",
        "pipeline/runtime/staging.py",
    }
