"""ARCHIVE: plans which sealed offsets to archive, cuts bundles, and checks manifests.

A bundle holds a contiguous range of offsets of one partition. The bundles of a partition follow
each other without gaps, so the manifest shows a missing one. A cut may fall inside a batch, which
is then written as two batches; only a batch with records removed by compaction is never split.

A manifest has one line of JSON per bundle. Each line carries its own hash and the hash of the line
before it, so changing, removing or moving a line breaks the chain; ``check_manifest`` reports which
line, and how. The chain cannot show that its *last* lines are missing. ``check_known`` finds those
by comparing the manifest with the broker's own list of bundles.

Pure: this module never touches a file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from cordwood.config import KEEP_ALL
from cordwood.model import Aborted

FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.jsonl"


class Sealed(NamedTuple):
    """The offset range of a sealed segment."""

    base_offset: int
    end_offset: int


class BatchSpan(NamedTuple):
    """One batch as described by its header; ``records`` is 0 for a transaction marker."""

    base_offset: int
    end_offset: int
    records: int
    size_bytes: int

    @property
    def is_dense(self) -> bool:
        """Whether every offset has a record, so that the batch may be split anywhere."""
        return self.records == self.end_offset - self.base_offset


class Span(NamedTuple):
    """The offsets of one bundle, half-open."""

    start: int
    end: int


def plan_due(
    sealed: Sequence[Sealed],
    *,
    log_start: int,
    archived_end: int,
    stable_end: int,
    through: int = KEEP_ALL,
) -> Span | None:
    """The offsets to archive now: sealed, below any open transaction, and not archived yet.

    ``through`` is the offset up to which the operator wants to archive, exclusive.
    """
    start = max(log_start, archived_end)
    sealed_end = max((segment.end_offset for segment in sealed), default=0)
    end = min(sealed_end, stable_end, through)
    return Span(start, end) if start < end else None


def plan_bundles(
    runs: Iterable[BatchSpan],
    due: Span,
    *,
    records_max: int = KEEP_ALL,
    bytes_max: int = KEEP_ALL,
) -> list[Span]:
    """Cut the due range into bundles within the record and byte limits, but at least one batch."""
    cuts: list[int] = []
    records = size_bytes = 0
    for run in runs:
        run_records, run_bytes = _inside(run, due), run.size_bytes
        if (records or size_bytes) and size_bytes + run_bytes > bytes_max:
            cuts.append(run.base_offset)
            records = size_bytes = 0
        if run.is_dense:
            first = max(run.base_offset, due.start)
            records = min(records, records_max)  # one sparse batch alone may exceed the limit
            offset = first + (records_max - records)  # where the current bundle is full
            while offset < min(run.end_offset, due.end):
                cuts.append(offset)
                offset += records_max
                records = records - records_max
            records += run_records
        else:
            if records and records + run_records > records_max:
                cuts.append(run.base_offset)
                records = size_bytes = 0
            records += run_records
        size_bytes += run_bytes
    edges = [due.start, *sorted({cut for cut in cuts if due.start < cut < due.end}), due.end]
    return [Span(start, end) for start, end in itertools.pairwise(edges)]


def _inside(run: BatchSpan, due: Span) -> int:
    """How many records of a batch are due; a sparse batch counts in full."""
    if not run.is_dense:
        return run.records
    return max(0, min(run.end_offset, due.end) - max(run.base_offset, due.start))


def planned_records(runs: Iterable[BatchSpan], span: Span) -> tuple[int, int]:
    """The minimum and maximum number of records that a bundle of ``span`` will hold.

    They differ only where the span starts or ends inside a sparse batch.
    """
    low = high = 0
    for run in runs:
        inside = min(run.end_offset, span.end) - max(run.base_offset, span.start)
        if inside <= 0:
            continue
        is_whole = inside == run.end_offset - run.base_offset
        low += inside if run.is_dense else run.records if is_whole else 0
        high += inside if run.is_dense else run.records
    return low, high


def bundle_name(partition: int, span: Span) -> str:
    """``<partition>/<first seq>-<last seq>.tar.gz``; names sort in offset order."""
    return f"{partition}/{span.start + 1:020d}-{span.end:020d}.tar.gz"


def topic_archive_name(topic: str, topic_id: str) -> str:
    """The directory name of a topic's archive; a topic that is recreated gets a new one."""
    return f"{topic}.{topic_id[:8]}"


class TransactionEnd(NamedTuple):
    """A transaction marker: the producer's open transaction ends here."""

    offset: int
    producer_id: int
    is_commit: bool


def aborted_spans(ends: Iterable[TransactionEnd]) -> list[Aborted]:
    """The aborted transactions: each from the producer's previous marker up to its abort."""
    since: dict[int, int] = {}
    spans = []
    for end in sorted(ends):
        if not end.is_commit:
            spans.append(Aborted(end.producer_id, since.get(end.producer_id, 0), end.offset))
        since[end.producer_id] = end.offset + 1
    return spans


# --- manifest -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the manifest."""

    number: int  # from 1
    bundle: str
    topic: str
    topic_id: str
    partition: int
    first_seq: int
    last_seq: int
    first_ms: int  # the time range of its records; -1 without records
    newest_ms: int
    records: int
    size_bytes: int
    sha256: str
    parquet_sha256: str | None
    transactional: bool  # whether it holds transactional records, which may be aborted
    archived: str  # when it was archived, ISO 8601 in UTC
    cursors: Mapping[str, int]  # reader → next offset at the time of archiving
    previous: str
    link: str = ""

    @property
    def span(self) -> Span:
        """Its offsets, half-open."""
        return Span(self.first_seq - 1, self.last_seq)


class Problem(StrEnum):
    """The kinds of problem that an archive can have."""

    EDITED = "edited"  # a manifest line does not match its own hash
    ORDER = "order"  # a line does not follow the previous one: a line was removed or moved
    GAP = "gap"  # a range between archived ranges that no bundle holds
    MISSING = "missing"  # the bundle file is missing
    CHANGED = "changed"  # the bundle's bytes differ from the archived ones
    STRANGER = "stranger"  # a bundle file that is not in the manifest
    UNKNOWN = "unknown"  # the broker has it as archived, but the manifest has no entry


class Finding(NamedTuple):
    """One problem and its location."""

    problem: Problem
    where: str
    detail: str


def genesis(topic: str, topic_id: str) -> str:
    """The hash that stands in for a previous link on the first line of a topic's manifest."""
    return hashlib.sha256(
        f"cordwood archive {FORMAT_VERSION} {topic} {topic_id}".encode()
    ).hexdigest()


def seal_entry(entry: Entry) -> Entry:
    """The entry with its link: a hash of all other fields, including the previous link."""
    fields = asdict(entry)
    del fields["link"]
    link = hashlib.sha256(_canonical(fields)).hexdigest()
    return Entry(**{**fields, "link": link})


def encode_manifest(entries: Iterable[Entry]) -> bytes:
    """The manifest as JSON lines."""
    return b"".join(_canonical(asdict(entry)) + b"\n" for entry in entries)


def parse_entry(line: bytes) -> Entry | None:
    """Parse a manifest line; None if it is not a valid entry."""
    try:
        return msgspec.json.decode(line, type=Entry)
    except ValueError:
        return None


def check_manifest(text: bytes) -> tuple[list[Entry], list[Finding]]:
    """The readable entries, and every problem that the hash chain shows."""
    entries: list[Entry] = []
    findings: list[Finding] = []
    previous: str | None = None
    lines = text.split(b"\n")
    if lines.pop():
        findings.append(Finding(Problem.EDITED, "manifest", "its last line is incomplete"))
    for number, line in enumerate(lines, 1):
        entry = parse_entry(line)
        if entry is None:
            findings.append(Finding(Problem.EDITED, f"line {number}", "it is not a manifest entry"))
            previous = None
            continue
        findings += _check_entry(entry, line, number, previous)
        previous = entry.link
        entries.append(entry)
    return entries, findings + _check_spans(entries)


def _check_entry(entry: Entry, line: bytes, number: int, previous: str | None) -> list[Finding]:
    where = f"line {number} ({entry.bundle})"
    if previous is None and number == 1:
        previous = genesis(entry.topic, entry.topic_id)
    findings = []
    if seal_entry(entry).link != entry.link or _canonical(asdict(entry)) != line:
        findings.append(Finding(Problem.EDITED, where, "its hash does not match its contents"))
    if entry.bundle != bundle_name(entry.partition, entry.span):  # it could name another path
        detail = "its bundle is not named after its partition and sequence range"
        findings.append(Finding(Problem.EDITED, where, detail))
    if previous is not None and entry.previous != previous:
        detail = (
            "it does not follow the line before it: a line was removed, or the order was changed"
        )
        findings.append(Finding(Problem.ORDER, where, detail))
    elif entry.number != number:
        findings.append(Finding(Problem.ORDER, where, f"it was line {entry.number}"))
    return findings


def _check_spans(entries: Sequence[Entry]) -> list[Finding]:
    """Check that ranges of a partition are contiguous and not empty."""
    ends: dict[int, int] = {}
    findings = []
    for entry in entries:
        start, end = entry.span
        reached = ends.get(entry.partition)
        if not start < end:
            findings.append(Finding(Problem.EDITED, entry.bundle, "its sequence range is empty"))
        elif reached is not None and start != reached:
            detail = f"partition {entry.partition} was archived up to seq {reached}"
            findings.append(Finding(Problem.GAP, entry.bundle, detail))
        ends[entry.partition] = end
    return findings


def check_known(entries: Iterable[Entry], known: Mapping[str, str]) -> list[Finding]:
    """Compare the manifest with the broker's list of bundles, ``known`` (bundle → link)."""
    links = {entry.bundle: entry.link for entry in entries}
    findings = []
    for bundle, link in known.items():
        if bundle not in links:
            detail = "the broker has recorded it as archived, but the manifest has no entry for it"
            findings.append(Finding(Problem.UNKNOWN, bundle, detail))
        elif links[bundle] != link:
            detail = "its entry is not the one that was reported to the broker"
            findings.append(Finding(Problem.EDITED, bundle, detail))
    return findings


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
