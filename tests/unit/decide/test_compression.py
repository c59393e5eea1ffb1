"""Which sealed segments are compressed, and which are left for what reason."""

from __future__ import annotations

import pytest

from cordwood.config import TopicConfig, changed
from cordwood.decide.compression import (
    CompressionInputs,
    CompressionResult,
    SealedSegment,
    codec_levels,
    is_worthwhile,
    plan_compression,
    topic_codec,
)
from cordwood.model import Codec
from support.stacks import NOW_MS, a_segment


def plan(segment=None, *, demand=False, **changes):
    """Return the status of one segment of offsets 0 to 9."""
    facts = {"sealed_ms": NOW_MS - 60_000, **(segment or {})}
    info = a_segment(0, 10, size_bytes=facts.pop("size_bytes", 100))
    inputs = {"codec": Codec.ZSTD, "delay_ms": 60_000, "clean_end": None, "is_leased": False}
    made = CompressionInputs(
        sealed=(SealedSegment(info, **facts),), now_ms=NOW_MS, **{**inputs, **changes}
    )
    ((_, status),) = plan_compression(made, demand=demand)
    return status.value


def test_a_segment_sealed_long_enough_is_due():
    """A segment that was never tried is due when its delay has passed."""
    assert plan() == "due"


def test_a_segment_sealed_just_now_waits():
    """Readers of the newest records find them uncompressed; on demand nothing waits."""
    assert plan({"sealed_ms": NOW_MS - 59_999}) == "young"
    assert plan({"sealed_ms": NOW_MS - 59_999}, demand=True) == "due"


@pytest.mark.parametrize(("is_kept", "status"), [(False, "compressed"), (True, "kept")])
def test_a_segment_is_tried_once_with_a_codec(is_kept, status):
    """The result is remembered, also if the segment was kept as it was. On demand too."""
    result = CompressionResult("zstd", NOW_MS, 100, is_kept=is_kept)
    assert plan({"result": result}) == status
    assert plan({"result": result}, demand=True) == status


def test_a_new_codec_makes_a_segment_due_again():
    """When ``compression.type`` changes, what was compressed before is compressed again."""
    assert plan({"result": CompressionResult("gzip", NOW_MS, 100)}) == "due"


def test_an_empty_segment_is_left_alone():
    """A segment that compaction emptied has nothing to compress."""
    assert plan({"size_bytes": 0}) == "kept"


def test_a_damaged_segment_is_never_rewritten():
    """What is left of it may be all there is; on demand too."""
    assert plan({"is_damaged": True}) == "damaged"
    assert plan({"is_damaged": True}, demand=True) == "damaged"


def test_a_compacted_topic_waits_for_its_pass():
    """Dirty segments are compaction's; it is clean once a pass has gone through it."""
    assert plan(clean_end=9) == "dirty"
    assert plan(clean_end=10) == "due"


def test_nothing_is_due_while_a_compaction_job_has_the_partition():
    """Two jobs never replace segments of one partition."""
    assert plan(is_leased=True) == "leased"


def test_a_failed_segment_waits_for_its_next_try():
    """A failure delays the next try; on demand it is tried at once."""
    assert plan({"retry_ms": NOW_MS + 1}) == "failed"
    assert plan({"retry_ms": NOW_MS + 1}, demand=True) == "due"
    assert plan({"retry_ms": NOW_MS}) == "due"


@pytest.mark.parametrize(("after", "worth"), [(95, True), (96, False), (100, False), (120, False)])
def test_a_rewrite_that_saves_too_little_is_not_worthwhile(after, worth):
    """Less than a twentieth saved is not worth a swap; growth never is."""
    assert is_worthwhile(100, after, Codec.GZIP) is worth


def test_a_topic_that_asks_for_no_compression_gets_it():
    """``uncompressed`` means larger files."""
    assert is_worthwhile(100, 300, Codec.NONE)
    assert not is_worthwhile(100, 100, Codec.NONE)


@pytest.mark.parametrize(
    ("text", "codec"),
    [("producer", None), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("lz4", Codec.LZ4)],
)
def test_the_codec_is_the_topics(text, codec):
    """``producer`` keeps the codec of each batch."""
    assert topic_codec(changed(TopicConfig(), {"compression.type": text})) is codec


def test_levels_are_the_topics():
    """Each codec has a setting for its level."""
    config = changed(TopicConfig(), {"compression.zstd.level": 7, "compression.gzip.level": 9})
    assert codec_levels(config) == {Codec.GZIP: 9, Codec.LZ4: 9, Codec.ZSTD: 7}
