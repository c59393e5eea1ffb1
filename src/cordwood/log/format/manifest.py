"""The manifest of a job: which live segments it replaces, and by which staged ones. Pure.

A job writes its files under ``staging/<job>/`` and, last, ``manifest.json`` beside them; without it
the job is unfinished. The text is one JSON object::

    {"format": 1, "job": "compact-17", "topic": "t", "topic_id": "…", "partition": 0,
     "replaces": [{"base_offset": 0, "end_offset": 10, "size_bytes": 917, "sha256": "…"}, …],
     "segments": [{"base_offset": 0, "end_offset": 30, "records": 12,
                   "files": [{"name": "00000000000000000000.log", "size_bytes": 431,
                              "sha256": "…"}, …]}, …],
     "verified": {…}}

``sha256`` of a replaced segment may be null if the job did not read it; size and range must match
in any case. ``.log`` is required; index files are optional, as the broker builds its own.
``verified`` is the job's own proof, kept for information.

Two rules make a swap recoverable from the file names alone: the first staged segment has the base
offset of the first replaced one, and the last staged one ends where the last replaced one ended. A
job that removes the last batch of its range leaves an empty batch there, as Kafka does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from cordwood.errors import InvalidManifest, StaleManifest
from cordwood.log.format.layout import SEGMENT_KINDS, FileKind, parse_file_name
from cordwood.model import SegmentInfo, SegmentState, TopicPartition, is_topic_name

MANIFEST_NAME: Final = "manifest.json"
STAGING_NAME: Final = "staging"
MANIFEST_FORMAT: Final = 1
_JOB: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A live segment as the job read it."""

    base_offset: int
    end_offset: int
    size_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file beside the manifest, with the name it will have when live."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """One new segment, with its files."""

    base_offset: int
    end_offset: int  # base of the next one; for the last, the end of its last batch
    records: int
    files: tuple[StagedFile, ...]

    def file(self, kind: FileKind) -> StagedFile | None:
        """Its file of this kind, if any."""
        return next((file for file in self.files if file.name.endswith(kind.value)), None)

    @property
    def log(self) -> StagedFile:
        """Its ``.log``, which every staged segment has."""
        file = self.file(FileKind.LOG)
        assert file is not None, "checked when the manifest was parsed"
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A job's proposal. Parsing checks its consistency; the swap compares it with the log."""

    job: str
    topic: str
    topic_id: str
    partition: int
    replaces: tuple[Replaced, ...]
    segments: tuple[StagedSegment, ...]
    verified: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it applies to."""
        return TopicPartition(self.topic, self.partition)


_Span = Replaced | StagedSegment


def is_job_name(job: str) -> bool:
    """Whether this is a valid job name, which is also used as a directory name."""
    return bool(_JOB.fullmatch(job))


def encode_manifest(manifest: Manifest) -> bytes:
    """The text of ``manifest.json``."""
    return json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=1).encode()


def parse_manifest(text: bytes) -> Manifest:
    """Inverse of ``encode_manifest``; raises ``InvalidManifest`` with the reason."""
    try:
        body = json.loads(text)
        if body.pop("format") != MANIFEST_FORMAT:
            raise InvalidManifest(
                f"the manifest has another format; this broker reads format {MANIFEST_FORMAT}"
            )
        segments = tuple(
            StagedSegment(**{**part, "files": tuple(StagedFile(**f) for f in part["files"])})
            for part in body.pop("segments")
        )
        replaces = tuple(Replaced(**part) for part in body.pop("replaces"))
        manifest = Manifest(**body, replaces=replaces, segments=segments)
        check_manifest(manifest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidManifest(
            f"the manifest cannot be parsed: {error!r}; run the job again"
        ) from None
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise ``InvalidManifest`` unless it is consistent and obeys the two rules above."""
    old, new = manifest.replaces, manifest.segments
    _require(is_job_name(manifest.job), f"{manifest.job!r} is not a valid job name")
    _require(is_topic_name(manifest.topic), f"{manifest.topic!r} is not a valid topic name")
    _require(
        isinstance(manifest.partition, int), f"{manifest.partition!r} is not a partition number"
    )
    _require(bool(old) and bool(new), "it must replace at least one segment with at least one")
    for parts in (list[_Span](old), list[_Span](new)):
        for part in parts:
            _require(0 <= part.base_offset <= part.end_offset, f"{part} ends before it starts")
        for low, high in pairwise(parts):
            _require(low.base_offset < high.base_offset, f"{high} is out of order")
            _require(low.end_offset == high.base_offset, f"{high} does not follow {low}")
    _require(
        new[0].base_offset == old[0].base_offset,
        "the new segments start at a different offset than the replaced ones",
    )
    _require(
        new[-1].end_offset == old[-1].end_offset,
        "the new segments end at a different offset than the replaced ones",
    )
    for segment in new:
        _check_files(segment)


def plan_swap(
    manifest: Manifest, live: Sequence[SegmentInfo], topic_id: str, hashes: Mapping[int, str]
) -> tuple[int, ...]:
    """The base offsets to replace; raises ``StaleManifest`` if the log has changed since the job.

    ``live`` is all of the partition's segments, ``hashes`` the known sha256 sums by base offset.
    The active segment is never replaced. The replaced segments must be consecutive: a segment that
    the job skipped in between would be lost.
    """
    if manifest.topic_id != topic_id:
        raise _stale(manifest, "the topic was deleted and created again in the meantime")
    bases = [segment.base_offset for segment in live]
    first = manifest.replaces[0].base_offset
    if first not in bases:
        raise _stale(manifest, f"segment {first} is no longer part of the log")
    start = bases.index(first)
    for replaced, segment in zip(manifest.replaces, live[start:], strict=False):
        _check_live(manifest, replaced, segment, hashes.get(replaced.base_offset))
    if len(live) - start < len(manifest.replaces):
        raise _stale(
            manifest, f"segment {manifest.replaces[-1].base_offset} is no longer part of the log"
        )
    return tuple(replaced.base_offset for replaced in manifest.replaces)


def _check_live(
    manifest: Manifest, replaced: Replaced, segment: SegmentInfo, sha256: str | None
) -> None:
    current = (segment.base_offset, segment.end_offset, segment.size_bytes)
    if current != (replaced.base_offset, replaced.end_offset, replaced.size_bytes):
        raise _stale(manifest, f"segment {replaced.base_offset} is now {current}, not {replaced}")
    if segment.state is not SegmentState.SEALED:
        raise _stale(manifest, f"segment {replaced.base_offset} is not sealed")
    if sha256 and replaced.sha256 and sha256 != replaced.sha256:
        raise _stale(manifest, f"segment {replaced.base_offset} has different contents (sha256)")


def _check_files(segment: StagedSegment) -> None:
    kinds = []
    for file in segment.files:
        name = parse_file_name(file.name)
        _require(
            name is not None
            and name.base_offset == segment.base_offset
            and name.kind in SEGMENT_KINDS
            and not name.suffix,
            f"{file.name!r} is not a file of segment {segment.base_offset}",
        )
        _require(file.size_bytes >= 0, f"{file.name} has a negative size")
        kinds.append(name and name.kind)
    _require(FileKind.LOG in kinds, f"segment {segment.base_offset} has no .log")
    _require(len(set(kinds)) == len(kinds), f"segment {segment.base_offset} lists a file twice")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise InvalidManifest(f"the manifest is inconsistent: {problem}; run the job again")


def _stale(manifest: Manifest, problem: str) -> StaleManifest:
    return StaleManifest(
        f"job {manifest.job} on {manifest.topic_partition}: {problem}; run the job again"
    )
