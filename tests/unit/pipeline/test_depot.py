"""A directory as an archive's place."""

from __future__ import annotations

import io

import pytest

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.depot import DirectoryDepot, open_depot


@pytest.fixture
def depot(tmp_path):
    return DirectoryDepot(str(tmp_path / "place"))


def test_a_file_is_there_whole_or_not_at_all(depot, tmp_path):
    """A writer that dies leaves nothing under the name, and what was there stays."""
    depot.put("a/b", io.BytesIO(b"old"))

    class Dies(io.BytesIO):
        def read(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        depot.put("a/b", Dies())
    with depot.open("a/b") as file:
        assert file.read() == b"old"
    assert depot.names() == ["a/b"]


def test_files_move_and_are_listed_by_prefix(depot):
    """In order, unfinished ones and locks left out."""
    for name in ("t/2", "t/1", "u/1"):
        depot.put(name, io.BytesIO(name.encode()))
    depot.move("t/2", "t/incoming/2")
    assert depot.names("t") == ["t/1", "t/incoming/2"]
    assert (depot.exists("t/2"), depot.exists("t/1")) == (False, True)
    with pytest.raises(FileNotFoundError):
        depot.open("t/2")
    for _ in range(2):
        depot.remove("t/1")
    assert depot.names("t") == ["t/incoming/2"]


def test_one_run_at_a_time(depot):
    """The second is told, at once."""
    with depot.held("t/manifest.jsonl"):
        with pytest.raises(UnavailableError, match="another run"), depot.held("t/manifest.jsonl"):
            pass
        assert depot.names() == []
    with depot.held("t/manifest.jsonl"):
        pass


def test_an_object_store_without_its_library_says_what_to_install(monkeypatch):
    """Not a traceback."""
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match="cordwood\\[s3\\]"):
        open_depot("s3://bucket/archive")


def test_an_object_store_does_what_a_directory_does(tmp_path):
    """Where obstore is installed; a local URL stands for a bucket."""
    pytest.importorskip("obstore")
    depot = open_depot(f"file://{tmp_path}/bucket")
    depot.put("t/incoming/1", io.BytesIO(b"bundle"))
    depot.move("t/incoming/1", "t/1")
    assert depot.names("t") == ["t/1"]
    with depot.open("t/1") as file:
        assert file.read() == b"bundle"
    for _ in range(2):
        depot.remove("t/1")
    assert depot.names("t") == []
    assert not depot.exists("t/2")
    with pytest.raises(FileNotFoundError):
        depot.open("t/2")
