"""Archive storage in a directory and in an object store."""

from __future__ import annotations

import gzip
import io
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cordwood.client.storage import DirectoryStorage, open_storage
from cordwood.errors import ConfigError, UnavailableError
from cordwood.log.format.bundle import GzipFile


@pytest.fixture
def storage(tmp_path):
    return DirectoryStorage(str(tmp_path / "place"))


def test_a_file_is_there_whole_or_not_at_all(storage, tmp_path):
    """A write is atomic: if the writer dies, the old file stays and no partial file is listed."""
    storage.put("a/b", io.BytesIO(b"old"))

    class Dies(io.BytesIO):
        def read(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.put("a/b", Dies())
    with storage.open("a/b") as file:
        assert file.read() == b"old"
    assert storage.names() == ["a/b"]


def test_files_move_and_are_listed_by_prefix(storage):
    """``move`` renames a file.

    ``names`` lists files by prefix, sorted, without locks and partial files.
    """
    for name in ("t/2", "t/1", "u/1"):
        storage.put(name, io.BytesIO(name.encode()))
    storage.move("t/2", "t/incoming/2")
    assert storage.names("t") == ["t/1", "t/incoming/2"]
    assert (storage.size("t/2"), storage.size("t/1")) == (None, 3)
    with pytest.raises(FileNotFoundError):
        storage.open("t/2")
    for _ in range(2):
        storage.remove("t/1")
    assert storage.names("t") == ["t/incoming/2"]


def test_one_run_at_a_time(storage):
    """Only one run may hold a lock. A second one fails immediately."""
    with storage.held("t/manifest.jsonl"):
        with pytest.raises(UnavailableError, match="another run"), storage.held("t/manifest.jsonl"):
            pass
        assert storage.names() == []
    with storage.held("t/manifest.jsonl"):
        pass


def test_an_object_store_without_its_library_says_what_to_install(monkeypatch):
    """Without ``obstore``, opening an object store fails with the package to install."""
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match="cordwood\\[s3\\]"):
        open_storage("s3://bucket/archive")


def test_an_object_store_does_what_a_directory_does(tmp_path):
    """An object store has the same operations as a directory. A file URL stands in for a bucket."""
    pytest.importorskip("obstore")
    storage = open_storage(f"file://{tmp_path}/bucket")
    storage.put("t/incoming/1", io.BytesIO(b"bundle"))
    storage.move("t/incoming/1", "t/1")
    assert storage.names("t") == ["t/1"]
    with storage.open("t/1") as file:
        assert file.read() == b"bundle"
    for _ in range(2):
        storage.remove("t/1")
    assert storage.names("t") == []
    assert storage.size("t/2") is None
    with pytest.raises(FileNotFoundError):
        storage.open("t/2")


class NoBucket(BaseHTTPRequestHandler):
    """An HTTP server that answers every request as S3 does for a bucket that does not exist."""

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        output = (
            b"<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>"
        )
        self.send_response(404)
        self.send_header("Content-Length", str(len(output)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else output)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = refuse  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def no_bucket(monkeypatch):
    pytest.importorskip("obstore")
    with HTTPServer(("127.0.0.1", 0), NoBucket) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        for name, value in {
            "ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "x",
            "SECRET_ACCESS_KEY": "x",
            "REGION": "here",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield open_storage("s3://nowhere/archive")
        server.shutdown()
        serving.join()


def test_a_store_that_refuses_is_one_sentence(no_bucket):
    """An error from an object store is one line with the store's own message."""
    for ask in (no_bucket.names, lambda: no_bucket.put("t/1", io.BytesIO(b"bundle"))):
        with pytest.raises(UnavailableError) as refused:
            ask()
        assert str(refused.value).startswith(
            "s3://nowhere/archive: There is no such bucket; check "
        )
        assert "\n" not in str(refused.value)
    assert no_bucket.size("t/1") is None


def test_a_bundle_in_an_object_store_is_read_as_from_a_directory(tmp_path):
    """A gzip bundle in an object store can be read in pieces of any size."""
    pytest.importorskip("obstore")
    storage = open_storage(f"file://{tmp_path}/bucket")
    text = bytes(range(256)) * 10_000
    with io.BytesIO() as packed:
        with gzip.GzipFile(fileobj=packed, mode="wb") as out:
            out.write(text)
        storage.put("t/1", io.BytesIO(packed.getvalue()))
    with storage.open("t/1") as file, GzipFile(fileobj=file) as inside:
        assert inside.read(1000) + inside.read() == text


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_size_is_what_was_written(form, tmp_path):
    """``size`` returns the bytes written, or ``None`` if there is no such file."""
    if "://" in form:
        pytest.importorskip("obstore")
    place = open_storage(form.format(tmp_path / "place"))
    place.put("t/1", io.BytesIO(b"12345"))
    assert (place.size("t/1"), place.size("t/2")) == (5, None)


def test_leftovers_of_dead_runs_are_swept_and_nothing_else(storage, tmp_path):
    """``sweep`` removes leftovers of dead runs, with partial files and empty directories.

    It keeps the files that the predicate selects and everything outside its prefix.
    """
    for name in ("t/incoming/0/a", "t/incoming/0/b", "t/incoming/1/c", "t/0/a"):
        storage.put(name, io.BytesIO(b"x"))
    (tmp_path / "place" / "t" / "incoming" / "1" / "d.12345678.part").write_bytes(b"half")
    storage.sweep("t/incoming", {"t/incoming/0/b"}.__contains__)
    left = {str(path.relative_to(tmp_path / "place")) for path in tmp_path.rglob("*")}
    assert left - {"."} >= {"t/incoming/0/b", "t/0/a"}
    assert not left & {"t/incoming/0/a", "t/incoming/1", "t/incoming/1/c"}
    storage.sweep("t/incoming", lambda _: False)
    assert storage.names() == ["t/0/a"]


def test_a_store_without_a_lock_keeps_what_another_run_may_be_writing(tmp_path):
    """An object store has no lock, so ``sweep`` removes only files that are at least a day old."""
    pytest.importorskip("obstore")
    store = open_storage(f"file://{tmp_path}/bucket")
    for name in ("t/incoming/old", "t/incoming/new", "t/incoming/kept"):
        store.put(name, io.BytesIO(b"x"))
    for name in ("old", "kept"):
        os.utime(tmp_path / "bucket" / "t" / "incoming" / name, (1, 1))
    store.sweep("t/incoming", {"t/incoming/kept"}.__contains__)
    assert store.names("t") == ["t/incoming/kept", "t/incoming/new"]


def test_two_writers_of_one_name_do_not_mix(storage):
    """Two concurrent writers of one name do not mix: the file is one of the two, complete."""

    class Slow(io.BytesIO):
        def read(self, *size):
            storage.put("t/1", io.BytesIO(b"second"))
            return super().read(*size)

    storage.put("t/1", Slow(b"the first, which is longer"))
    with storage.open("t/1") as file:
        assert file.read() == b"the first, which is longer"
    assert storage.names() == ["t/1"]


def test_what_is_no_file_is_not_opened(storage, tmp_path):
    """Only a regular file is opened, because reading a named pipe could block forever."""
    storage.put("t/1", io.BytesIO(b"x"))
    os.mkfifo(tmp_path / "place" / "t" / "2")
    with pytest.raises(FileNotFoundError):
        storage.open("t/2")


@pytest.mark.parametrize("place", ["http://127.0.0.1:1/x", "ftp://host/x", "memory:///x"])
def test_a_url_that_is_no_object_store_is_refused(place):
    """Other URLs are refused, so that a request cannot make the broker call arbitrary servers."""
    with pytest.raises(ConfigError, match="s3"):
        open_storage(place)


def test_an_archive_is_never_readable_by_everybody(tmp_path):
    """Archive files are never readable by all users, whatever the umask is.

    Only the owner has access, or also the group if it may read the archive directory.
    """
    before = os.umask(0)
    try:
        for mode, expected in ((0o700, (0o600, 0o700)), (0o755, (0o660, 0o2770))):
            place = tmp_path / f"{mode:o}"
            place.mkdir()
            place.chmod(mode)
            storage = DirectoryStorage(str(place))
            storage.put("t/0/bundle", io.BytesIO(b"records"))
            with storage.held("t"):
                found = list(place.rglob("*"))
            assert {p.stat().st_mode & 0o7777 for p in found if p.is_file()} == {expected[0]}
            assert {p.stat().st_mode & 0o7777 for p in found if p.is_dir()} == {expected[1]}
    finally:
        os.umask(before)
