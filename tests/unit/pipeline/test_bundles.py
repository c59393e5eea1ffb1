"""One bundle: what tar makes of it, and what damage does to it."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import zlib

import pytest

from cordwood.batch.records import encode_batch
from cordwood.decide.archive import Span
from cordwood.errors import CorruptionError
from cordwood.model import Record, TopicPartition
from cordwood.pipeline import bundles
from cordwood.pipeline.bundles import check_bundle, read_batches, write_bundle
from cordwood.pipeline.segments import Chunk

TP = TopicPartition("t", 0)
COUNT = 200
DATA = encode_batch([Record(i, 1_700_000_000_000 + i, b"k", b"value %d" % i) for i in range(COUNT)])


@pytest.fixture(params=["as installed", "Python's own"], autouse=True)
def _packer(request, monkeypatch):
    """Every promise holds with either gzip."""
    if request.param == "Python's own":
        monkeypatch.setattr(bundles, "GzipFile", gzip.GzipFile)
        monkeypatch.setattr(bundles, "GzipError", zlib.error)


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
    assert check_bundle(io.BytesIO(a_bundle(part)), TP, part) == 10


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
