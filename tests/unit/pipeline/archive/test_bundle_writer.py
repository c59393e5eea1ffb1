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
from cordwood.log.format import bundle
from cordwood.log.format.bundle import (
    READ_BYTES,
    count_records,
    proving,
    read_batches,
    whole_batches,
)
from cordwood.model import Record, TopicPartition
from cordwood.pipeline.archive import bundle_writer
from cordwood.pipeline.archive.bundle_writer import write_bundle
from cordwood.pipeline.source.segment_files import Chunk

TP = TopicPartition("t", 0)
COUNT = 200
DATA = encode_batch([Record(i, 1_700_000_000_000 + i, b"k", b"value %d" % i) for i in range(COUNT)])


@pytest.fixture(params=["as installed", "Python's own"], autouse=True)
def _packer(request, monkeypatch):
    """Every promise holds with either gzip."""
    if request.param == "Python's own":
        monkeypatch.setattr(bundle_writer, "GzipFile", gzip.GzipFile)
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
    assert count_records(io.BytesIO(a_bundle(part)), TP, part) == 10


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
            count_records(io.BytesIO(bytes(damaged)), TP, Span(0, COUNT))
    with pytest.raises(CorruptionError):
        count_records(io.BytesIO(whole[: len(whole) // 3]), TP, Span(0, COUNT))


def test_a_bundle_that_is_another_is_found_whatever_was_read_of_it():
    """The sum is over all of the file, also behind what a reader takes out of it."""
    whole = a_bundle()
    sha256 = hashlib.sha256(whole).hexdigest()
    with proving(io.BytesIO(whole), "b", sha256) as source:
        assert count_records(source, TP, Span(0, COUNT)) == COUNT
    for other in (whole + b"x", whole[:-1], a_bundle(Span(0, COUNT - 1)), b""):
        with (
            pytest.raises(CorruptionError, match="sha256"),
            proving(io.BytesIO(other), "b", sha256) as source,
        ):
            count_records(source, TP, Span(0, COUNT))
    with pytest.raises(CorruptionError, match="sha256"), proving(io.BytesIO(b"y"), "b", sha256):
        pass


class Endless(io.RawIOBase):
    """A header, and then zeros for ever; tells how much was read."""

    def __init__(self, head):
        self.head = head
        self.read_bytes = 0

    def read(self, size=-1):
        data, self.head = self.head[:size], self.head[size:]
        self.read_bytes += size
        return data + bytes(size - len(data))


@pytest.mark.parametrize("promised_bytes", [0, 2**31 - 1])
def test_a_bundle_without_end_is_given_up_before_it_fills_the_memory(promised_bytes):
    """The broker reads what anybody may have written: gzip makes gigabytes out of little."""
    endless = Endless(DATA[:8] + promised_bytes.to_bytes(4, "big") + DATA[12:61])
    with pytest.raises(CorruptionError, match="no batch"):
        list(whole_batches(endless, "b", batch_bytes_max=3 * READ_BYTES))
    assert endless.read_bytes <= 4 * READ_BYTES
