"""COMPRESS: plans which sealed segments are rewritten in their topic's codec, and which are not.

A segment is due once it has been sealed for ``compression.delay.ms`` and has not been tried with
the topic's ``compression.type``. The result is remembered with the segment, also if the segment was
kept because compression would save too little, so that no segment is tried twice with one codec.

In a compacted topic only clean segments are due: a pass is about to rewrite the dirty ones, and
compresses what it rewrites. Nothing is due while a compaction job has the partition. A damaged
segment is never rewritten. Nothing here reads a record or touches a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from cordwood.config import TopicConfig
from cordwood.model import Codec, SegmentInfo

SAVED_SHARE_MIN: Final = 0.05  # a rewrite that saves less is discarded


class CompressionStatus(StrEnum):
    """Whether a segment is due, and why not."""

    DUE = "due"
    COMPRESSED = "compressed"
    KEPT = "kept"  # as it was: the codec saves too little, or every batch has it
    YOUNG = "young"  # sealed less than compression.delay.ms ago
    DIRTY = "dirty"  # compaction rewrites it first
    DAMAGED = "damaged"  # restore it or accept the damage; it is not rewritten
    LEASED = "leased"  # a compaction job has the partition
    FAILED = "failed"  # tried again later


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """What became of a segment; stored in the segment index."""

    codec: str  # of the topic at that time
    at_ms: int
    bytes_before: int  # as it was sealed
    is_kept: bool = False  # it was left as it was


class SealedSegment(NamedTuple):
    """A sealed segment and what is known about its compression."""

    info: SegmentInfo
    sealed_ms: int
    result: CompressionResult | None = None
    is_damaged: bool = False
    retry_ms: int = 0  # after a failure, when to try again


class PlannedSegment(NamedTuple):
    """A segment and what is to be done with it."""

    segment: SealedSegment
    status: CompressionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionInputs:
    """One partition, as of now."""

    sealed: tuple[SealedSegment, ...]
    codec: Codec  # that the topic asks for
    delay_ms: int
    clean_end: int | None  # of a compacted topic: the end of its clean segments
    is_leased: bool  # a compaction job may replace segments
    now_ms: int


def topic_codec(config: TopicConfig) -> Codec | None:
    """Return the codec that the topic asks for; None keeps each batch's own."""
    if config.compression_type == "producer":
        return None
    name = config.compression_type.upper()
    return Codec.NONE if name == "UNCOMPRESSED" else Codec[name]


def codec_levels(config: TopicConfig) -> dict[Codec, int]:
    """Return the level at which a topic wants each codec."""
    return {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }


def plan_compression(
    inputs: CompressionInputs, *, demand: bool = False
) -> Sequence[PlannedSegment]:
    """The status of every segment; on ``demand`` nothing waits for its delay or its next try."""
    return [PlannedSegment(each, _status(each, inputs, demand)) for each in inputs.sealed]


def is_worthwhile(bytes_before: int, bytes_after: int, codec: Codec) -> bool:
    """Whether a rewritten segment should replace the original.

    A topic that asks for no compression gets it, whatever the size.
    """
    if codec is Codec.NONE:
        return bytes_after != bytes_before
    return bytes_before - bytes_after >= SAVED_SHARE_MIN * bytes_before


def _status(segment: SealedSegment, inputs: CompressionInputs, demand: bool) -> CompressionStatus:
    result, info = segment.result, segment.info
    if result is not None and result.codec == inputs.codec.name.lower():
        return CompressionStatus.KEPT if result.is_kept else CompressionStatus.COMPRESSED
    if not info.size_bytes:
        return CompressionStatus.KEPT
    if segment.is_damaged:
        return CompressionStatus.DAMAGED
    if inputs.clean_end is not None and info.end_offset > inputs.clean_end:
        return CompressionStatus.DIRTY
    if not demand and inputs.now_ms < segment.sealed_ms + inputs.delay_ms:
        return CompressionStatus.YOUNG
    if not demand and inputs.now_ms < segment.retry_ms:
        return CompressionStatus.FAILED
    return CompressionStatus.LEASED if inputs.is_leased else CompressionStatus.DUE
