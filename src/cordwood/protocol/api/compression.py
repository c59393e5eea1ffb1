"""Compression of sealed segments: start it for a topic, and follow its progress."""

from __future__ import annotations

import msgspec

from cordwood.protocol.api.call import Call, Text


class CompressedSegment(msgspec.Struct, frozen=True):
    """A sealed segment; ``status`` says what was done with it, or why nothing was."""

    partition: str
    segment: int  # its base offset
    status: str  # due, compressed, kept, young, dirty, damaged, leased, failed or postponed
    bytes_before: int  # as it was sealed
    bytes: int
    error: str = ""


class CompressionProgress(msgspec.Struct, frozen=True):
    """Progress of the last compression on demand; all zero before the first."""

    topic: str | None = None
    running: bool = False
    bytes: int = 0
    total_bytes: int = 0
    segments: tuple[CompressedSegment, ...] = ()


class GetCompression(Call[CompressionProgress], frozen=True):
    """Ask for the progress of the last compression on demand."""

    route = "GET", "/compression"


class StartCompression(Call[CompressionProgress], frozen=True):
    """Compress the sealed segments of a topic; ``dry`` only lists them."""

    route = "POST", "/compression"
    topic: Text
    dry: bool = False
