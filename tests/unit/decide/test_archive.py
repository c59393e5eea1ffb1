"""What is due for the archive, where bundles are cut, and what a manifest's chain shows."""

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

SEALED = [Sealed(0, 100), Sealed(100, 200)]


def due(**changes):
    facts = {"log_start": 0, "archived_end": 0, "stable_end": 1000} | changes
    return plan_due(SEALED, **facts)


def a_manifest(spans, topic="t", partition=0):
    """Entries that chain as a run of archive writes them."""
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
    """The active segment is never archived, whatever is asked for."""
    assert due() == Span(0, 200)
    assert due(through=5000) == Span(0, 200)


def test_due_begins_where_the_archive_or_the_log_begins():
    """What is archived is not archived again, and what is gone cannot be."""
    assert due(archived_end=150) == Span(150, 200)
    assert due(log_start=120, archived_end=100) == Span(120, 200)
    assert due(archived_end=200) is None


def test_an_open_transaction_is_not_due():
    """Nobody knows yet whether its records are for readers."""
    assert due(stable_end=70) == Span(0, 70)


def test_through_stops_in_the_middle_of_a_segment():
    """An operator names a sequence, not a file."""
    assert due(through=130) == Span(0, 130)


def test_a_batch_is_divided_where_a_bundle_is_full():
    """A thousand records of one batch make four bundles of 250."""
    cut = plan_bundles([BatchSpan(0, 1000, 1000, 1)], Span(0, 1000), records_max=250)
    assert cut == [Span(0, 250), Span(250, 500), Span(500, 750), Span(750, 1000)]


def test_bundles_count_from_where_the_due_part_begins():
    """Also when that is inside a batch."""
    runs = [BatchSpan(0, 100, 100, 1), BatchSpan(100, 200, 100, 1)]
    assert plan_bundles(runs, Span(50, 190), records_max=60) == [
        Span(50, 110),
        Span(110, 170),
        Span(170, 190),
    ]


def test_a_thinned_batch_stays_whole():
    """Compaction left 3 of 100 offsets: cutting by records would need to know which."""
    runs = [BatchSpan(0, 100, 3, 1), BatchSpan(100, 200, 3, 1)]
    assert plan_bundles(runs, Span(0, 200), records_max=4) == [Span(0, 100), Span(100, 200)]


def test_bundles_by_bytes_take_one_batch_at_least():
    """A batch larger than the limit is a bundle of its own."""
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
    """Its records lie between the producer's last marker and this one."""
    ends = [
        TransactionEnd(9, 1, is_commit=True),
        TransactionEnd(20, 1, is_commit=False),
        TransactionEnd(15, 2, is_commit=False),
        TransactionEnd(30, 1, is_commit=True),
    ]
    assert sorted(aborted_spans(ends)) == [(1, 10, 20), (2, 0, 15)]


def test_a_manifest_as_written_holds():
    """No finding, and the entries come back as they were."""
    assert check_manifest(encode_manifest(ENTRIES)) == (ENTRIES, [])
    assert check_manifest(b"") == ([], [])


def test_an_edited_entry_is_named():
    """Its hash no longer matches what it says."""
    edited = [ENTRIES[0], replace(ENTRIES[1], records=1), ENTRIES[2]]
    (finding,) = check_manifest(encode_manifest(edited))[1]
    assert finding.problem is Problem.EDITED
    assert ENTRIES[1].bundle in finding.where


def test_an_edited_entry_with_a_new_hash_breaks_the_chain():
    """The next entry still holds the hash of what stood there."""
    forged = [ENTRIES[0], seal_entry(replace(ENTRIES[1], records=1)), ENTRIES[2]]
    (finding,) = check_manifest(encode_manifest(forged))[1]
    assert finding.problem is Problem.ORDER
    assert ENTRIES[2].bundle in finding.where


@pytest.mark.parametrize("gone", [0, 1])
def test_a_removed_entry_breaks_the_chain(gone):
    """The first one, too: a chain begins with its topic."""
    assert Problem.ORDER in problems(ENTRIES[:gone] + ENTRIES[gone + 1 :])


def test_reordered_entries_break_the_chain():
    """Each line holds the hash of the one before it."""
    assert Problem.ORDER in problems([ENTRIES[1], ENTRIES[0], ENTRIES[2]])


def test_a_missing_tail_shows_against_what_the_broker_knows():
    """A chain cannot miss its own last links."""
    known = {entry.bundle: entry.link for entry in ENTRIES}
    assert problems(ENTRIES[:2]) == set()
    (finding,) = check_known(ENTRIES[:2], known)
    assert (finding.problem, finding.where) == (Problem.UNKNOWN, ENTRIES[2].bundle)
    assert check_known(ENTRIES, known) == []


def test_a_last_entry_forged_whole_shows_against_what_the_broker_knows():
    """Nothing follows it that could contradict it; the broker does."""
    forged = [*ENTRIES[:2], seal_entry(replace(ENTRIES[2], sha256="cd"))]
    known = {entry.bundle: entry.link for entry in ENTRIES}
    assert problems(forged) == set()
    assert [finding.problem for finding in check_known(forged, known)] == [Problem.EDITED]


@pytest.mark.parametrize("name", ["../../elsewhere.tar.gz", "/etc/passwd", "1/x.tar.gz", ""])
def test_a_bundle_is_where_its_partition_and_sequences_say(name):
    """A manifest with good hashes may still lead whoever restores out of the archive."""
    (entry, *_) = ENTRIES
    assert problems([seal_entry(replace(entry, bundle=name))]) == {Problem.EDITED}


def test_a_hole_in_the_sequences_is_found():
    """Even in a chain that was made with it."""
    holed = a_manifest([(0, 250), (300, 500)])
    assert problems(holed) == {Problem.GAP}


def test_a_line_written_otherwise_is_edited():
    """The same JSON in other words: nobody but us writes manifests."""
    text = encode_manifest(ENTRIES).replace(b'"number":2', b'"number": 2')
    assert {finding.problem for finding in check_manifest(text)[1]} == {Problem.EDITED}


def test_a_manifest_begins_with_its_topic():
    """A chain cut off and begun anew elsewhere does not start where this topic's starts."""
    begun = seal_entry(replace(ENTRIES[0], previous=ENTRIES[2].link))
    assert problems([begun]) == {Problem.ORDER}


@pytest.mark.parametrize("cut", [1, 5])
def test_a_manifest_cut_short_is_found(cut):
    """Even by its last newline."""
    text = encode_manifest(ENTRIES)[:-cut]
    assert Problem.EDITED in {finding.problem for finding in check_manifest(text)[1]}
