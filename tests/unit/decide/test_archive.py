"""What is due for the archive, where bundles end, and what a manifest's hash chain proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.decide.archive import (
    BatchSpan,
    Entry,
    Problem,
    Sealed,
    Span,
    TransactionEnd,
    aborted_spans,
    bundle_name,
    check_known,
    check_manifest,
    encode_manifest,
    genesis,
    plan_bundles,
    plan_due,
    seal_entry,
)
from cordwood.model import Aborted

SEALED = [Sealed(0, 100), Sealed(100, 200)]


def due(**changes):
    fields = {"log_start": 0, "archived_end": 0, "stable_end": 1000} | changes
    return plan_due(SEALED, **fields)


def a_manifest(spans, topic="t", partition=0):
    """Return chained entries as an archive run writes them."""
    entries = []
    for span in spans:
        entry = Entry(
            number=len(entries) + 1,
            bundle=bundle_name(partition, Span(*span)),
            topic=topic,
            topic_id="id",
            partition=partition,
            first_seq=span[0] + 1,
            last_seq=span[1],
            first_ms=1,
            newest_ms=2,
            records=span[1] - span[0],
            size_bytes=10,
            sha256="ab",
            parquet_sha256=None,
            transactional=False,
            archived="2026-11-15T10:00:00+00:00",
            cursors={"g": 5},
            previous=entries[-1].link if entries else genesis(topic, "id"),
        )
        entries.append(seal_entry(entry))
    return entries


ENTRIES = a_manifest([(0, 250), (250, 500), (500, 750)])


def problems(entries):
    return {finding.problem for finding in check_manifest(encode_manifest(entries))[1]}


def test_only_sealed_offsets_are_due():
    """Only sealed segments are archived, whatever end is requested."""
    assert due() == Span(0, 200)
    assert due(through=5000) == Span(0, 200)


def test_due_begins_where_the_archive_or_the_log_begins():
    """The due range starts after the archived offsets and not below the log start."""
    assert due(archived_end=150) == Span(150, 200)
    assert due(log_start=120, archived_end=100) == Span(120, 200)
    assert due(archived_end=200) is None


def test_an_open_transaction_is_not_due():
    """The due range ends at the first open transaction."""
    assert due(stable_end=70) == Span(0, 70)


def test_through_stops_in_the_middle_of_a_segment():
    """``through`` may end the range in the middle of a segment."""
    assert due(through=130) == Span(0, 130)


def test_a_batch_is_divided_where_a_bundle_is_full():
    """A batch of a thousand records is split into four bundles of 250."""
    cut = plan_bundles([BatchSpan(0, 1000, 1000, 1)], Span(0, 1000), records_max=250)
    assert cut == [Span(0, 250), Span(250, 500), Span(500, 750), Span(750, 1000)]


def test_bundles_count_from_where_the_due_part_begins():
    """Bundles count records from the start of the due range, even inside a batch."""
    runs = [BatchSpan(0, 100, 100, 1), BatchSpan(100, 200, 100, 1)]
    assert plan_bundles(runs, Span(50, 190), records_max=60) == [
        Span(50, 110),
        Span(110, 170),
        Span(170, 190),
    ]


def test_a_thinned_batch_stays_whole():
    """A compacted batch is not split, because its record count does not give its offsets."""
    runs = [BatchSpan(0, 100, 3, 1), BatchSpan(100, 200, 3, 1)]
    assert plan_bundles(runs, Span(0, 200), records_max=4) == [Span(0, 100), Span(100, 200)]


def test_bundles_by_bytes_take_one_batch_at_least():
    """A bundle holds at least one batch, even if it exceeds the byte limit."""
    runs = [
        BatchSpan(0, 10, 10, 500),
        BatchSpan(10, 20, 10, 40),
        BatchSpan(20, 30, 10, 40),
        BatchSpan(30, 40, 10, 40),
    ]
    assert plan_bundles(runs, Span(0, 40), bytes_max=100) == [
        Span(0, 10),
        Span(10, 30),
        Span(30, 40),
    ]


def test_an_aborted_transaction_reaches_back_to_the_one_before():
    """An aborted transaction spans the offsets since the producer's previous marker."""
    ends = [
        TransactionEnd(9, 1, is_commit=True),
        TransactionEnd(20, 1, is_commit=False),
        TransactionEnd(15, 2, is_commit=False),
        TransactionEnd(30, 1, is_commit=True),
    ]
    assert sorted(aborted_spans(ends)) == [Aborted(1, 10, 20), Aborted(2, 0, 15)]


def test_a_manifest_as_written_holds():
    """An unchanged manifest has no findings, and its entries parse to the same values."""
    assert check_manifest(encode_manifest(ENTRIES)) == (ENTRIES, [])
    assert check_manifest(b"") == ([], [])


def test_an_edited_entry_is_named():
    """An edited entry no longer matches its hash and is named."""
    edited = [ENTRIES[0], replace(ENTRIES[1], records=1), ENTRIES[2]]
    (finding,) = check_manifest(encode_manifest(edited))[1]
    assert finding.problem is Problem.EDITED
    assert ENTRIES[1].bundle in finding.where


def test_an_edited_entry_with_a_new_hash_breaks_the_chain():
    """If an edited entry gets a new hash, the next entry no longer matches it."""
    forged = [ENTRIES[0], seal_entry(replace(ENTRIES[1], records=1)), ENTRIES[2]]
    (finding,) = check_manifest(encode_manifest(forged))[1]
    assert finding.problem is Problem.ORDER
    assert ENTRIES[2].bundle in finding.where


@pytest.mark.parametrize("gone", [0, 1])
def test_a_removed_entry_breaks_the_chain(gone):
    """Removing an entry breaks the chain, also the first one, which links to the topic."""
    assert Problem.ORDER in problems(ENTRIES[:gone] + ENTRIES[gone + 1 :])


def test_reordered_entries_break_the_chain():
    """Reordering entries breaks the chain, because each holds the hash of the previous one."""
    assert Problem.ORDER in problems([ENTRIES[1], ENTRIES[0], ENTRIES[2]])


def test_a_missing_tail_shows_against_what_the_broker_knows():
    """A missing last entry is found by comparing the manifest with the broker's records."""
    known = {entry.bundle: entry.link for entry in ENTRIES}
    assert problems(ENTRIES[:2]) == set()
    (finding,) = check_known(ENTRIES[:2], known)
    assert (finding.problem, finding.where) == (Problem.UNKNOWN, ENTRIES[2].bundle)
    assert check_known(ENTRIES, known) == []


def test_a_last_entry_forged_whole_shows_against_what_the_broker_knows():
    """A forged last entry is found by comparing the manifest with the broker's records."""
    forged = [*ENTRIES[:2], seal_entry(replace(ENTRIES[2], sha256="cd"))]
    known = {entry.bundle: entry.link for entry in ENTRIES}
    assert problems(forged) == set()
    assert [finding.problem for finding in check_known(forged, known)] == [Problem.EDITED]


@pytest.mark.parametrize("name", ["../../elsewhere.tar.gz", "/etc/passwd", "1/x.tar.gz", ""])
def test_a_bundle_is_where_its_partition_and_sequences_say(name):
    """A bundle name that does not match its partition and sequences is reported as edited."""
    (entry, *_) = ENTRIES
    assert problems([seal_entry(replace(entry, bundle=name))]) == {Problem.EDITED}


def test_a_hole_in_the_sequences_is_found():
    """A gap in the sequences is reported, even if the chain is valid."""
    holed = a_manifest([(0, 250), (300, 500)])
    assert problems(holed) == {Problem.GAP}


def test_a_line_written_otherwise_is_edited():
    """A line with the same JSON but other formatting is reported as edited."""
    text = encode_manifest(ENTRIES).replace(b'"number":2', b'"number": 2')
    assert {finding.problem for finding in check_manifest(text)[1]} == {Problem.EDITED}


def test_a_manifest_begins_with_its_topic():
    """The first entry must link to the topic's start, not to another entry."""
    begun = seal_entry(replace(ENTRIES[0], previous=ENTRIES[2].link))
    assert problems([begun]) == {Problem.ORDER}


@pytest.mark.parametrize("cut", [1, 5])
def test_a_manifest_cut_short_is_found(cut):
    """A truncated manifest is reported, even if only the last newline is missing."""
    text = encode_manifest(ENTRIES)[:-cut]
    assert Problem.EDITED in {finding.problem for finding in check_manifest(text)[1]}
