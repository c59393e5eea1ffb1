"""One bundle: what tar makes of it, and what damage does to it."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import zlib

import pytest

from cordwood.batch.records import encode_batch
from cordwood.decide.archive import Span
from cordwood.errors import CorruptionError
from cordwood.log import bundle
from cordwood.log.bundle import check_bundle, proving, read_batches
from cordwood.model import Record, TopicPartition
from cordwood.pipeline import bundles
from cordwood.pipeline.bundles import write_bundle
from cordwood.pipeline.segments import Chunk

TP = TopicPartition("t", 0)
COUNT = 200
DATA = encode_batch([Record(i, 1_700_000_000_000 + i, b"k", b"value %d" % i) for i in range(COUNT)])


@pytest.fixture(params=["as installed", "Python's own"], autouse=True)
def _packer(request, monkeypatch):
    """Every promise holds with either gzip."""
    if request.param == "Python's own":
        monkeypatch.setattr(bundles, "GzipFile", gzip.GzipFile)
        monkeypatch.setattr(bundle, "GzipFile", gzip.GzipFile)
        monkeypatch.setattr(bundle, "GzipError", zlib.error)


def a_bundle(span=Span(0, COUNT)):  # noqa: B008 - it is a value
    file = io.BytesIO()
    chunk = Chunk(DATA, 0, COUNT)
    facts = write_bundle(file, TP, span, [chunk], lines=True)
    assert facts.records == span.end - span.start
    return file.getvalue()


def test_a_bundle_holds_the_batches_it_was_given():
    """Byte for byte; what is outside the span is left out."""
    assert b"".join(read_batches(io.BytesIO(a_bundle()), TP, Span(0, COUNT))) == DATA
    part = Span(50, 60)
    assert check_bundle(io.BytesIO(a_bundle(part)), TP, part).records == 10


def test_the_same_records_make_the_same_bundle():
    """No time, owner or name of a machine gets in."""
    assert a_bundle() == a_bundle()


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is missing")
def test_tar_unpacks_it(tmp_path):
    """Anybody's, in ten years."""
    done = subprocess.run(["tar", "xzf", "-"], input=a_bundle(), cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == DATA
    assert len((tmp_path / "t-0" / f"{0:020d}.txt").read_bytes().splitlines()) == COUNT


def test_damage_anywhere_in_the_batches_is_found():
    """Whoever meets it first, gzip, tar or a batch's checksum, it is corruption; so is an end."""
    whole = a_bundle()
    for position in range(10, len(whole) // 2, 37):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        with pytest.raises(CorruptionError):
            check_bundle(io.BytesIO(bytes(damaged)), TP, Span(0, COUNT))
    with pytest.raises(CorruptionError):
        check_bundle(io.BytesIO(whole[: len(whole) // 3]), TP, Span(0, COUNT))


def test_a_bundle_that_is_another_is_found_whatever_was_read_of_it():
    """The sum is over all of the file, also behind what a reader takes out of it."""
    whole = a_bundle()
    sha256 = hashlib.sha256(whole).hexdigest()
    with proving(io.BytesIO(whole), "b", sha256) as source:
        contents = check_bundle(source, TP, Span(0, COUNT))
    assert (contents.records, contents.count(Span(0, COUNT))) == (COUNT, COUNT)
    for other in (whole + b"x", whole[:-1], a_bundle(Span(0, COUNT - 1)), b""):
        with (
            pytest.raises(CorruptionError, match="sha256"),
            proving(io.BytesIO(other), "b", sha256) as source,
        ):
            check_bundle(source, TP, Span(0, COUNT))
    with pytest.raises(CorruptionError, match="sha256"), proving(io.BytesIO(b"y"), "b", sha256):
        pass
