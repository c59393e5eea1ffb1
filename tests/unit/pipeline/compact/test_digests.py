"""Key digests of the compactor: the hash, the file format, and when a file is not used."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cordwood.batch.columns import Spans
from cordwood.batch.header_table import readonly
from cordwood.batch.kernels import digests as digest_kernels
from cordwood.batch.kernels import llvm_intrinsics
from cordwood.batch.records import encode_batch
from cordwood.errors import DamagedDigest
from cordwood.model import Record
from cordwood.pipeline.compact import digests
from cordwood.pipeline.compact.digests import BUCKETS, DigestWriter, open_secret, read_digest
from cordwood.pipeline.compact.superseded import (
    ENTRY_BYTES,
    RangeTask,
    SupersededOffsets,
    add_up,
    find_range,
    plan_ranges,
    read_deltas,
    write_deltas,
)

TOPIC_ID = "11111111-2222-3333-4444-555555555555"


def hash_of(key: bytes, secret: bytes = bytes(range(16))) -> bytes:
    spans = Spans.of([key])
    entries = np.zeros((1, 5), np.uint32)
    digest_kernels.digest_keys(
        (readonly(spans.data), spans.starts, spans.lengths),
        np.array([1], np.int32), np.array([0], np.int64), 0,
        digests.parse_secret(secret), entries,
    )  # fmt: skip
    high, low = ((int(entries[0, i]) << 32 | int(entries[0, i + 1])) for i in (0, 2))
    return high.to_bytes(8, "little") + low.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_the_hash_is_siphash_2_4_128(length, expected):
    """The hash matches the SipHash-2-4-128 reference vectors for key 00 … 0f."""
    assert hash_of(bytes(range(length))).hex() == expected


def test_another_secret_gives_other_hashes():
    """Another secret gives another hash, so that a client cannot construct colliding keys."""
    assert hash_of(b"key") != hash_of(b"key", bytes(16))


def test_digest_kernels_state_the_pieces_they_are_made_of():
    """The kernels record the digest of llvm_intrinsics.py.

    Numba's cache does not notice changes in that file, so the constant must change with it.
    """
    digest = hashlib.sha256(Path(llvm_intrinsics.__file__).read_bytes()).hexdigest()[:16]
    assert digest == digest_kernels.INTRINSICS_DIGEST, "set MACHINE_DIGEST to this"


def make(path: Path, count: int = 100, base: int = 1000, secret=None):
    secret = open_secret(path.parent) if secret is None else secret
    writer = DigestWriter(path, TOPIC_ID, base, secret)
    records = [Record(base + i, 5, b"k%d" % (i % 60), None if i % 10 == 0 else b"v")
               for i in range(count)]  # fmt: skip
    writer.add(encode_batch(records))
    writer.finish()
    return secret


def test_a_digest_reads_back_entry_by_entry(tmp_path):
    """A digest file returns all entries, by bucket, in log order, and its summary counts them."""
    secret = make(tmp_path / "a.keys")
    digest = read_digest(tmp_path / "a.keys", TOPIC_ID, secret)
    entries = digest.entries(0, BUCKETS)
    deltas = sorted((entries[:, 4] & digests.DELTA).tolist())
    assert deltas == list(range(100))
    assert (digest.summary.entries, digest.summary.bare_tombstones) == (100, 10)
    parts = [digest.entries(low, low + 128) for low in range(0, BUCKETS, 128)]
    assert np.array_equal(np.concatenate(parts), entries)


def test_small_blocks_hold_the_same(tmp_path):
    """A segment with more records than a block is sorted block by block, with the same result."""
    secret = open_secret(tmp_path)
    writer = DigestWriter(tmp_path / "a.keys", TOPIC_ID, 0, secret, block_entries=7)
    for i in range(50):
        writer.add(encode_batch([Record(i, 5, b"k%d" % (i % 20), b"v")]))
    writer.finish()
    found = read_digest(tmp_path / "a.keys", TOPIC_ID, secret).entries(0, BUCKETS)
    assert sorted(found[:, 4].tolist()) == list(range(50))
    task = RangeTask(0, 2**32, (str(tmp_path / "a.keys"),), TOPIC_ID, secret.tobytes(), "")
    assert find_range(task)[:3] == ((30,), 20, 50)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100])
def test_a_digest_cut_short_is_not_there(tmp_path, cut):
    """A truncated digest file is treated as missing."""
    secret = make(tmp_path / "a.keys")
    data = (tmp_path / "a.keys").read_bytes()
    (tmp_path / "a.keys").write_bytes(data[: len(data) - cut - 1] if cut else b"")
    assert read_digest(tmp_path / "a.keys", TOPIC_ID, secret) is None


def test_no_flipped_bit_of_a_digest_goes_unnoticed(tmp_path):
    """A flipped bit is detected: when entries are read, or when the file is opened."""
    secret = make(tmp_path / "a.keys", count=20)
    data = (tmp_path / "a.keys").read_bytes()
    for position in (*range(0, len(data), 97), *range(len(data) - 400, len(data), 5)):
        bad = bytearray(data)
        bad[position] ^= 4
        (tmp_path / "a.keys").write_bytes(bad)
        digest = read_digest(tmp_path / "a.keys", TOPIC_ID, secret)
        if digest is not None:
            with pytest.raises(DamagedDigest):
                digest.entries(0, BUCKETS)


def test_a_digest_of_another_topic_or_secret_is_not_used(tmp_path):
    """A digest of another topic or with another secret is treated as missing."""
    secret = make(tmp_path / "a.keys")
    assert read_digest(tmp_path / "a.keys", "another", secret) is None
    assert read_digest(tmp_path / "a.keys", TOPIC_ID, secret + np.uint64(1)) is None


def test_the_secret_is_made_once_and_kept_to_its_owner(tmp_path):
    """The secret is created once and is readable only by its owner."""
    first = open_secret(tmp_path)
    assert np.array_equal(first, open_secret(tmp_path))
    path = tmp_path / "cleaner" / "secret"
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("entries", [0, 1, 1000, 10**6, 10**12])
def test_ranges_cover_the_hash_space_and_fit_the_budget(entries):
    """The ranges cover the whole hash space without gaps, and each fits the memory budget."""
    ranges = plan_ranges(entries, 1 << 20)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**32
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert entries * ENTRY_BYTES / len(ranges) <= 1 << 20 or len(ranges) == 1 << 20


def test_finer_ranges_than_buckets_find_the_same(tmp_path):
    """Ranges smaller than a bucket find the same superseded records."""
    secret = make(tmp_path / "a.keys")
    paths = (str(tmp_path / "a.keys"),)
    results = []
    for count in (1, 8, 2048):
        width = 2**32 // count
        tasks = [
            RangeTask(i * width, (i + 1) * width, paths, TOPIC_ID, secret.tobytes(), "")
            for i in range(count)
        ]
        results.append(add_up([find_range(task) for task in tasks]))
    assert (
        results[0]
        == results[1]
        == results[2]
        == SupersededOffsets((40,), 60, 100, results[0].newest_sum)
    )


def test_a_range_gone_through_in_slices_finds_the_same(tmp_path):
    """A range that is processed in slices finds the same superseded records as in one piece."""
    secret = make(tmp_path / "a.keys")
    make(tmp_path / "b.keys")
    paths = tuple(str(tmp_path / name) for name in ("a.keys", "b.keys"))
    task = RangeTask(0, 2**32, paths, TOPIC_ID, secret.tobytes(), str(tmp_path / "dead"))
    found = []
    for entries in (10**6, 20, 1):
        counts = find_range(task._replace(slice_entries=entries))
        dead = [read_deltas([task.out], 2, segment).tolist() for segment in (0, 1)]
        found.append((counts, dead))
    assert all(one == found[0] for one in found)
    assert list(map(len, found[0][1])) == list(found[0][0].counts) != [0, 0]


def test_deltas_come_back_by_segment_from_all_files(tmp_path):
    """Deltas of a segment are read from the files of all tasks and returned in order."""
    for name, deltas in (("a", [5, 1, 9]), ("b", [7, 0, 3])):
        write_deltas(tmp_path / name, np.array(deltas, np.uint32), np.array([0, 2, 3]))
    paths = [str(tmp_path / name) for name in "ab"]
    assert read_deltas(paths, 2, 0).tolist() == [0, 1, 5, 7]
    assert read_deltas(paths, 2, 1).tolist() == [3, 9]
