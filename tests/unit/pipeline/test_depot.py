"""A directory as an archive's place, and an object store."""

from __future__ import annotations

import gzip
import io
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cordwood.errors import ConfigError, UnavailableError
from cordwood.pipeline.bundles import GzipFile
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


class NoBucket(BaseHTTPRequestHandler):
    """A store that answers everything as S3 does for a bucket that is not there."""

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = b"<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else said)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = refuse  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Quiet."""


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
        yield open_depot("s3://nowhere/archive")
        server.shutdown()
        serving.join()


def test_a_store_that_refuses_is_one_sentence(no_bucket):
    """With its own words, not the pages the library prints."""
    for ask in (no_bucket.names, lambda: no_bucket.put("t/1", io.BytesIO(b"bundle"))):
        with pytest.raises(UnavailableError) as refused:
            ask()
        assert str(refused.value).startswith("s3://nowhere/archive: There is no such bucket; look ")
        assert "\n" not in str(refused.value)
    assert not no_bucket.exists("t/1")


def test_a_bundle_in_an_object_store_is_read_as_from_a_directory(tmp_path):
    """In pieces of any size, and into a buffer: gzip asks for that."""
    pytest.importorskip("obstore")
    depot = open_depot(f"file://{tmp_path}/bucket")
    text = bytes(range(256)) * 10_000
    with io.BytesIO() as packed:
        with gzip.GzipFile(fileobj=packed, mode="wb") as out:
            out.write(text)
        depot.put("t/1", io.BytesIO(packed.getvalue()))
    with depot.open("t/1") as file, GzipFile(fileobj=file) as inside:
        assert inside.read(1000) + inside.read() == text
