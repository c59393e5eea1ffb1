"""Properties of archive plans and manifests for any limits and any damage."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.archive import (
    BatchSpan,
    Entry,
    Span,
    bundle_name,
    check_manifest,
    encode_manifest,
    genesis,
    plan_bundles,
    planned_records,
    seal_entry,
)


@st.composite
def logs(draw):
    """Generate consecutive batches, some with records removed, and a due range inside them."""
    runs, offset = [], draw(st.integers(0, 50))
    for size in draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)):
        records = draw(st.sampled_from([size, size, max(0, size - 1), 0]))
        runs.append(BatchSpan(offset, offset + size, records, draw(st.integers(61, 500))))
        offset += size
    start = draw(st.integers(runs[0].base_offset, offset - 1))
    return runs, Span(start, draw(st.integers(start + 1, offset)))


@given(logs(), st.integers(1, 60), st.integers(61, 1500))
def test_bundles_cover_what_is_due_without_hole_or_overlap(log, records_max, bytes_max):
    """For any limit, bundles cover the due range without gap or overlap."""
    runs, due = log
    for limits in ({"records_max": records_max}, {"bytes_max": bytes_max}):
        bundles = plan_bundles(runs, due, **limits)
        assert (bundles[0].start, bundles[-1].end) == due
        assert all(a.end == b.start for a, b in itertools.pairwise(bundles))
        assert all(bundle.start < bundle.end for bundle in bundles)


@given(logs(), st.integers(1, 60))
def test_no_bundle_of_whole_batches_holds_too_many_records(log, records_max):
    """If every batch can be divided, every bundle but the last holds exactly the maximum."""
    runs, due = log
    dense = [run._replace(records=run.end_offset - run.base_offset) for run in runs]
    bundles = plan_bundles(dense, due, records_max=records_max)
    sizes = [bundle.end - bundle.start for bundle in bundles]
    assert all(size == records_max for size in sizes[:-1])
    assert sizes[-1] <= records_max


def a_manifest(ends):
    entries: list[Entry] = []
    start = 0
    for end in ends:
        span = Span(start, start + end)
        start = span.end
        entry = Entry(
            number=len(entries) + 1,
            bundle=bundle_name(0, span),
            topic="topic",
            topic_id="id",
            partition=0,
            first_seq=span.start + 1,
            last_seq=span.end,
            first_ms=1,
            newest_ms=2,
            records=end,
            size_bytes=10,
            sha256="ab" * 32,
            parquet_sha256=None,
            transactional=False,
            archived="2026-11-15T10:00:00+00:00",
            cursors={"g": 1, "h": 2},
            previous=entries[-1].link if entries else genesis("topic", "id"),
        )
        entries.append(seal_entry(entry))
    return entries


manifests = st.lists(st.integers(1, 999), min_size=1, max_size=6).map(a_manifest)


@given(manifests, st.data())
def test_any_flipped_bit_of_a_manifest_is_found(entries, data):
    """A flipped bit is found in any field and between fields."""
    text = bytearray(encode_manifest(entries))
    position = data.draw(st.integers(0, len(text) - 1))
    text[position] ^= 1 << data.draw(st.integers(0, 7))
    assert check_manifest(bytes(text))[1]


@given(manifests.filter(lambda entries: len(entries) > 1), st.data())
def test_any_removed_entry_but_the_last_is_found(entries, data):
    """A missing last entry cannot be found in the manifest alone; the broker detects it."""
    del entries[data.draw(st.integers(0, len(entries) - 2))]
    assert check_manifest(encode_manifest(entries))[1]


@given(manifests.filter(lambda entries: len(entries) > 1), st.data())
def test_any_other_order_is_found(entries, data):
    """Every permutation of the entries is rejected, except the original order."""
    shuffled = data.draw(st.permutations(entries))
    assert bool(check_manifest(encode_manifest(shuffled))[1]) == (shuffled != entries)


@given(logs(), st.integers(1, 60))
def test_what_bundles_will_hold_adds_up_to_what_is_due(log, records_max):
    """The minimum and maximum record counts of the bundles add up to those of the due range."""
    runs, due = log
    spans = plan_bundles(runs, due, records_max=records_max)
    bounds = [planned_records(runs, span) for span in spans]
    low, high = planned_records(runs, due)
    assert sum(each[0] for each in bounds) == low
    thin = [run for run in runs if not run.is_dense]
    divided = [
        run for run in thin for span in spans[1:] if run.base_offset < span.start < run.end_offset
    ]
    assert divided == [], "a thinned batch is never divided"
    assert sum(each[1] for each in bounds) == high
    dense = [run._replace(records=run.end_offset - run.base_offset) for run in runs]
    assert planned_records(dense, due) == (due.end - due.start, due.end - due.start)
