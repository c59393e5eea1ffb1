"""Archive bundles: tar can unpack them, and readers detect damage."""

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
from cordwood.log.format import bundle, bundle_writer
from cordwood.log.format.bundle import (
    READ_BYTES,
    count_records,
    proving,
    read_batches,
    whole_batches,
)
from cordwood.log.format.bundle_writer import write_bundle
from cordwood.model import Record, TopicPartition

TP = TopicPartition("t", 0)
COUNT = 200
DATA = encode_batch([Record(i, 1_700_000_000_000 + i, b"k", b"value %d" % i) for i in range(COUNT)])


@pytest.fixture(params=["as installed", "Python's own"], autouse=True)
def _packer(request, monkeypatch):
    """Run every test with the installed gzip implementation and with Python's own."""
    if request.param == "Python's own":
        monkeypatch.setattr(bundle_writer, "GzipFile", gzip.GzipFile)
        monkeypatch.setattr(bundle, "GzipFile", gzip.GzipFile)
        monkeypatch.setattr(bundle, "GzipError", zlib.error)


def a_bundle(span=Span(0, COUNT)):  # noqa: B008 - a Span is immutable
    file = io.BytesIO()
    stats = write_bundle(file, TP, span, [DATA], lines=True)
    assert stats.records == span.end - span.start
    return file.getvalue()


def test_a_bundle_holds_the_batches_it_was_given():
    """A bundle holds the given bytes unchanged, without the records outside the span."""
    assert b"".join(read_batches(io.BytesIO(a_bundle()), TP, Span(0, COUNT))) == DATA
    part = Span(50, 60)
    assert count_records(io.BytesIO(a_bundle(part)), TP, part) == 10


def test_the_same_records_make_the_same_bundle():
    """A bundle contains no current time, owner or host name, so equal records give equal bytes."""
    assert a_bundle() == a_bundle()


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is missing")
def test_tar_unpacks_it(tmp_path):
    """The standard ``tar`` command unpacks a bundle."""
    done = subprocess.run(["tar", "xzf", "-"], input=a_bundle(), cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == DATA
    assert len((tmp_path / "t-0" / f"{0:020d}.txt").read_bytes().splitlines()) == COUNT


def test_damage_anywhere_in_the_batches_is_found():
    """Damage or truncation is corruption, whether gzip, tar or a batch checksum detects it."""
    whole = a_bundle()
    for position in range(10, len(whole) // 2, 37):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        with pytest.raises(CorruptionError):
            count_records(io.BytesIO(bytes(damaged)), TP, Span(0, COUNT))
    with pytest.raises(CorruptionError):
        count_records(io.BytesIO(whole[: len(whole) // 3]), TP, Span(0, COUNT))


def test_a_bundle_that_is_another_is_found_whatever_was_read_of_it():
    """The SHA-256 covers the whole file, including bytes that the reader does not use."""
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
    """A batch header followed by endless zeros; counts the bytes that are read."""

    def __init__(self, head):
        self.head = head
        self.read_bytes = 0

    def read(self, size=-1):
        data, self.head = self.head[:size], self.head[size:]
        self.read_bytes += size
        return data + bytes(size - len(data))


@pytest.mark.parametrize("promised_bytes", [0, 2**31 - 1])
def test_a_bundle_without_end_is_given_up_before_it_fills_the_memory(promised_bytes):
    """A reader stops at its batch limit, because a small gzip file can expand to gigabytes."""
    endless = Endless(DATA[:8] + promised_bytes.to_bytes(4, "big") + DATA[12:61])
    with pytest.raises(CorruptionError, match="not a record batch"):
        list(whole_batches(endless, "b", batch_bytes_max=3 * READ_BYTES))
    assert endless.read_bytes <= 4 * READ_BYTES
