"""When a log is complete, and when the router's counts balance."""

from __future__ import annotations

from cordwood.decide.audit import AuditWindow, RangeAudit, audit_partition, is_whole


def a_piece(start, end, **changes):
    options = {
        "records": end - start,
        "markers": 0,
        "thinned": 0,
        "holes": 0,
        "repeats": 0,
    }
    return RangeAudit(start=start, end=end, **(options | changes))


def audit(*pieces, bounds=(0, 20), compacted=False, renumbered=0):
    return audit_partition("t", 0, bounds, pieces, compacted=compacted, renumbered=renumbered)


def a_window(**changes):
    options = dict.fromkeys(AuditWindow._fields, 0) | {"window": "2026-11-15"} | changes
    return AuditWindow(**options)


def test_pieces_that_follow_each_other_are_sound():
    """Consecutive ranges are sound, and so are an empty and a reclaimed partition."""
    assert audit(a_piece(0, 10), a_piece(10, 20)).is_sound
    assert audit(bounds=(5, 5)).is_sound
    assert audit(a_piece(5, 20), bounds=(5, 20)).is_sound


def test_a_hole_is_missing_wherever_it_is():
    """A hole counts as missing between or inside batches, between ranges, and at both ends."""
    assert audit(a_piece(0, 20, records=17, holes=3)).missing == 3
    assert audit(a_piece(0, 8), a_piece(10, 20)).missing == 2
    assert audit(a_piece(4, 20)).missing == 4
    assert audit(a_piece(0, 15)).missing == 5
    assert audit(a_piece(0, 20, records=19, thinned=1)).missing == 1
    assert audit().missing == 20


def test_holes_of_a_compacted_topic_are_explained():
    """Holes in a compacted topic count as cleaned and not as missing."""
    found = audit(a_piece(0, 8), a_piece(10, 20), compacted=True)
    assert (found.missing, found.cleaned, found.is_sound) == (0, 2, True)


def test_a_batch_stored_twice_is_a_duplicate():
    """A batch that repeats an offset or a producer's sequence counts as a duplicate."""
    assert audit(a_piece(0, 20, repeats=1)).duplicates == 1
    twice = audit(a_piece(0, 10, repeats=1), a_piece(10, 20), renumbered=2)
    assert (twice.duplicates, twice.is_sound) == (3, False)


def test_pending_and_expired_records_do_not_unbalance_the_books():
    """Missing, duplicated or unknown records unbalance a window; pending or expired ones do not."""
    assert a_window(ingested=9, routed=4, pending=3, expired=2).is_balanced
    for wrong in ("missing", "duplicated", "strangers"):
        assert not a_window(**{wrong: 1}).is_balanced


def test_an_audit_is_whole_when_every_part_is():
    """An audit is whole only if every partition and every window is sound."""
    good, bad = audit(a_piece(0, 20)), audit(a_piece(0, 19))
    assert is_whole([good], [a_window()])
    assert not is_whole([good, bad], [])
    assert not is_whole([good], [a_window(missing=1)])
