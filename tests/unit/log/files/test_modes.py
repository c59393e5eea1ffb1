"""File permissions: only the owner may read, or also the owner's group if a setting allows it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from cordwood.config import BrokerConfig
from cordwood.log.files.disk import Files
from cordwood.log.files.modes import GROUP, OWNER, like, make_shared_directory, write_shared
from cordwood.log.format.manifest import STAGING_NAME
from cordwood.log.lifecycle.directory import ARCHIVE, CLEANER
from cordwood.log.lifecycle.store import Store
from cordwood.pipeline.compact.digests import open_secret
from cordwood.server.embedded import open_embedded_store
from cordwood.server.rotating_file import RotatingFile
from support.clock import ManualClock
from support.crash import FailingFiles
from support.stores import TP, append, append_sealed, values_in


@pytest.fixture(params=[0, 0o077], ids=["umask-000", "umask-077"])
def any_umask(request):
    """Run the test with two umasks: the umask must not affect the file modes."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def written(data: Path, file_mode: str) -> Store:
    """A store that has created every kind of file that a broker creates."""
    config = BrokerConfig(file_mode=file_mode)
    store = open_embedded_store(data, config, ManualClock(), Files())
    if "t" not in store.topics:
        store.create_topic("t", 1)
    append_sealed(store, "ab", "cd")
    append(store.partition(TP), "e")
    output = RotatingFile(data / "pipeline.log")
    output.write(b"words\n")
    output.close()
    return store


def modes_below(data: Path) -> dict[str, int]:
    """The mode of every path in the directory, including the directory itself."""
    return {
        str(path.relative_to(data)): stat.S_IMODE(path.stat().st_mode)
        for path in (data, *data.rglob("*"))
    }


def test_only_the_owner_may_read_a_data_directory(tmp_path, any_umask):
    """Every file is owner-only, including open SQLite files and files that a job has staged."""
    data = tmp_path / "data"
    store = written(data, "owner")
    job = data / STAGING_NAME / "job"
    make_shared_directory(job)
    write_shared(job / "part", b"records")
    open_secret(data)
    found = modes_below(data)
    store.close()
    assert {"meta.db", "meta.db-wal", "meta.db-shm", "t-0", "staging/job/part"} <= set(found)
    for name, mode in found.items():
        assert mode == (OWNER.directory if (data / name).is_dir() else OWNER.file), name


def test_a_group_may_read_it_and_write_where_jobs_do(tmp_path, any_umask):
    """Directories pass their group on to new files, and other users have no access."""
    data = tmp_path / "data"
    store = written(data, "group")
    job = data / STAGING_NAME / "job"
    make_shared_directory(job)
    write_shared(job / "part", b"records")
    open_secret(data)
    found = modes_below(data)
    store.close()
    for name, mode in found.items():
        is_shared = name.split("/")[0] in {STAGING_NAME, CLEANER, ARCHIVE}
        if (data / name).is_dir():
            assert mode == (GROUP.shared_directory if is_shared else GROUP.directory), name
        else:
            assert mode == (GROUP.shared_file if is_shared else GROUP.file), name
    assert {STAGING_NAME, CLEANER, ARCHIVE} <= set(found), "the group cannot make them"


def test_a_directory_from_before_is_tightened_at_the_next_start(tmp_path, caplog):
    """A start restricts the modes of our files once and logs it; foreign files are unchanged."""
    data = tmp_path / "data"
    written(data, "owner").close()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data / "notes.txt").write_text("somebody's")
    (data / "notes.txt").chmod(0o644)
    written(data, "owner").close()
    assert "permissions.changed" in caplog.text
    found = modes_below(data)
    assert found.pop("notes.txt") == 0o644
    assert {mode & 0o077 for mode in found.values()} == {0}
    caplog.clear()
    store = written(data, "owner")
    assert "permissions.changed" not in caplog.text
    assert values_in(store.partition(TP))[0] == "a"
    store.close()


def test_one_file_that_cannot_be_changed_leaves_no_other_open(tmp_path, caplog):
    """If the mode of one file cannot be changed, this is logged and the others are restricted."""
    data = tmp_path / "data"
    written(data, "owner").close()
    make_shared_directory(data / ARCHIVE)
    write_shared(data / ARCHIVE / "bundle", b"records")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    files = FailingFiles()
    files.refused, files.under = {"chmod"}, "bundle"
    open_embedded_store(data, BrokerConfig(), ManualClock(), files).close()
    assert "permissions.not_changed count=1" in caplog.text
    found = modes_below(data)
    assert found.pop(f"{ARCHIVE}/bundle") == 0o644
    assert {mode & 0o077 for mode in found.values()} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users: NOT PROVED here")
def test_a_directory_of_another_user_stops_no_start(caplog):
    """A job directory that the broker cannot read is logged, and the broker starts."""
    data = Path(tempfile.mkdtemp(prefix="cordwood-")) / "data"
    written(data, "owner").close()
    make_shared_directory(data / STAGING_NAME / "job")
    data.parent.chmod(0o755)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.chown(path, 65534, -1)
    os.chown(data / STAGING_NAME / "job", 0, -1)
    (data / STAGING_NAME / "job").chmod(0o700)
    os.seteuid(65534)
    try:
        written(data, "owner").close()
    finally:
        os.seteuid(0)
    found = modes_below(data)
    shutil.rmtree(data.parent)
    assert "permissions.not_changed" in caplog.text
    assert {mode & 0o077 for mode in found.values()} == {0}


def test_a_setting_that_changes_is_carried_out(tmp_path):
    """Changing the setting from owner to group also changes the modes of existing files."""
    data = tmp_path / "data"
    written(data, "owner").close()
    written(data, "group").close()
    assert modes_below(data)["t-0/00000000000000000000.log"] == GROUP.file
    assert modes_below(data)["t-0"] == GROUP.directory


def test_a_job_does_as_the_directory_it_writes_to(tmp_path):
    """A job derives its modes from the directory and never makes files readable by all users."""
    for mode, expected in ((0o700, OWNER), (0o2770, GROUP), (0o755, GROUP)):
        place = tmp_path / f"{mode:o}"
        place.mkdir()
        place.chmod(mode)
        assert like(place / "not" / "yet" / "there") is expected
