"""The archive bundles of one partition, in memory and searchable by offset.

Bundles cover ranges of offsets, not segments: they stay valid when compaction swaps segments, and
after RECLAIM they answer status queries. Gaps between them are offsets that were deleted before
they could be archived.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cordwood.metadata.offset_index import OffsetIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """A bundle that a job has written and verified by reading it back."""

    start_offset: int
    end_offset: int
    name: str
    sha256: str
    link: str  # the hash in its manifest entry, to be checked against the manifest
    place: str  # the directory or URL of the archive
    verified: bool = False  # whether the broker found its own records in the bundle
    unproven_records: int = 0  # records at offsets already deleted from the log at verification


def decode_bundle(value: bytes) -> BundleEntry:
    """Decode a stored value; a verification by record count (an earlier version) does not count."""
    fields = msgspec.json.decode(value)
    is_proved = "unproven_records" in fields
    return msgspec.convert({**fields, "verified": is_proved and fields["verified"]}, BundleEntry)


class BundleIndex(OffsetIndex[BundleEntry]):
    """Bundles by start offset. Thread-safe."""

    @property
    def verified_end(self) -> int:
        """The end offset up to which the broker itself has verified every bundle."""
        end = 0
        for entry in self.entries():
            if not entry.verified:
                break
            end = entry.end_offset
        return end
