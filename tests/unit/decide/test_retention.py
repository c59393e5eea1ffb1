"""Which sealed segments retention drops, and what holds the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.decide.retention import (
    Drop,
    Hold,
    Holder,
    Reason,
    plan_retention,
    watermark,
)
from support.stacks import NOW_MS, a_stack, an_active


def a_config(policy: str = "delete", **settings) -> TopicConfig:
    settings.setdefault("retention_ms", KEEP_ALL)
    return TopicConfig(cleanup_policy=frozenset(policy.split(",")), **settings)


def plan(sealed, config, readers=(), *, active=None, log_start=0, **more):
    active = active or an_active(sealed)
    return plan_retention(
        sealed,
        active,
        dict(readers),
        log_start=log_start,
        config=config,
        now_ms=NOW_MS,
        **more,
    )


def reasons(plan_):
    return [(drop.segment.base_offset, drop.reason) for drop in plan_.drops]


def test_segments_older_than_retention_go():
    """A segment is dropped if its newest record is older than retention.ms."""
    config = a_config(retention_ms=1000)
    assert reasons(plan(a_stack(1002, 1001, 1000), config)) == [(0, Reason.AGE), (10, Reason.AGE)]


def test_a_young_segment_protects_all_that_follow():
    """Drops stop at the first segment that is kept, for example due to a future timestamp."""
    config = a_config(retention_ms=1000)
    assert reasons(plan(a_stack(2000, -5000, 2000), config)) == [(0, Reason.AGE)]


def test_size_drops_only_while_the_rest_holds_the_limit():
    """A segment is dropped by size only if the rest still holds retention.bytes, as in Kafka."""
    stack = a_stack(0, 0, 0)
    assert reasons(plan(stack, a_config(retention_bytes=250))) == [(0, Reason.SIZE)]
    assert reasons(plan(stack, a_config(retention_bytes=300))) == [(0, Reason.SIZE)]
    assert reasons(plan(stack, a_config(retention_bytes=301))) == []


def test_compact_alone_drops_nothing():
    """With the compact policy alone, neither age nor size nor readers drop a segment."""
    config = a_config("compact", retention_ms=1, retention_bytes=1)
    assert plan(a_stack(5000, 5000), config, {"r": 99}).drops == ()


def test_compact_delete_drops_by_age_too():
    """With compact,delete, age drops segments as in Kafka."""
    config = a_config("compact,delete", retention_ms=1000)
    assert reasons(plan(a_stack(5000), config)) == [(0, Reason.AGE)]


def test_segments_below_the_log_start_go_under_any_policy():
    """Segments below the log start are dropped under any policy, without waiting for anyone."""
    verdict = plan(a_stack(0, 0), a_config("compact"), {"r": 0}, log_start=15, archived_end=0)
    assert verdict.drops == (Drop(a_stack(0)[0], Reason.LOG_START),)


@pytest.mark.parametrize("policy", ["consume", "compact,consume"])
def test_consume_drops_what_every_registered_reader_has_passed(policy):
    """Consume drops segments that all registered readers have passed; a hold names the slowest."""
    stack = a_stack(0, 0, 0)
    verdict = plan(stack, a_config(policy), {"slow": 10, "fast": 30})
    assert reasons(verdict) == [(0, Reason.CONSUMED)]
    assert verdict.holds == (
        Hold(stack[1], Reason.CONSUMED, Holder.READERS, ("slow",)),
        Hold(stack[2], Reason.CONSUMED, Holder.READERS, ("slow",)),
    )


def test_consume_keeps_all_when_nobody_is_registered():
    """Without registered readers consume drops nothing, and the hold gives that reason."""
    verdict = plan(a_stack(0), a_config("consume"))
    assert verdict.drops == ()
    assert verdict.holds[0].holder is Holder.NO_READER


def test_consume_delete_needs_both():
    """With consume,delete a segment must be expired and consumed."""
    config = a_config("consume,delete", retention_ms=1000)
    stack = a_stack(2000, 2000, 500)
    verdict = plan(stack, config, {"r": 30, "s": 15})
    assert reasons(verdict) == [(0, Reason.AGE)]
    assert verdict.holds == (Hold(stack[1], Reason.AGE, Holder.READERS, ("s",)),)
    assert reasons(plan(stack, config, {"r": 30})) == [(0, Reason.AGE), (10, Reason.AGE)]


def test_delete_alone_does_not_wait_but_says_who_loses():
    """With delete alone, retention does not wait for readers, but names those that lose records."""
    verdict = plan(a_stack(2000), a_config(retention_ms=1000), {"late": 3, "done": 10})
    assert verdict.drops == (Drop(a_stack(2000)[0], Reason.AGE, ("late",)),)
    assert verdict.holds == ()


def test_the_hard_cap_takes_what_a_reader_still_needs_and_names_it():
    """The hard cap drops segments that readers still need, and names these readers."""
    config = a_config("consume", retention_hard_bytes=250)
    verdict = plan(a_stack(0, 0, 0), config, {"stuck": 0, "fast": 30})
    assert [(d.reason, d.loses) for d in verdict.drops] == [(Reason.HARD_CAP, ("stuck",))] * 2


def test_the_hard_cap_leaves_the_active_segment():
    """The hard cap drops only sealed segments and does not roll the active one."""
    config = a_config("consume", retention_hard_bytes=10)
    verdict = plan(a_stack(0), config, {"stuck": 0})
    assert len(verdict.drops) == 1
    assert not verdict.roll_active


def test_the_hard_age_takes_old_segments_that_nobody_has_read_and_names_readers():
    """A segment past ``retention.hard.ms`` is dropped, with a reader behind it or without any."""
    config = a_config("consume", retention_hard_ms=1000)
    stack = a_stack(2000, 1500, 500)
    verdict = plan(stack, config, {"stuck": 15})
    assert [(d.reason, d.loses) for d in verdict.drops] == [
        (Reason.CONSUMED, ()),
        (Reason.HARD_AGE, ("stuck",)),
    ]
    assert reasons(plan(stack, config)) == [(0, Reason.HARD_AGE), (10, Reason.HARD_AGE)]


def test_an_active_segment_past_the_hard_age_is_to_be_sealed():
    """Idle records do not outlive the limit in the active segment."""
    config = a_config("consume", retention_hard_ms=1000)
    assert plan([], config, {"r": 0}, active=an_active([], age_ms=1001)).roll_active
    assert not plan([], config, {"r": 0}, active=an_active([], age_ms=1000)).roll_active
    assert not plan([], config, active=an_active([], size_bytes=0, age_ms=5000)).roll_active


def test_an_unarchived_segment_is_held():
    """A segment that is not archived yet is held, and the hold names the archive."""
    stack = a_stack(2000, 2000)
    verdict = plan(stack, a_config(retention_ms=1000), archived_end=10)
    assert reasons(verdict) == [(0, Reason.AGE)]
    assert verdict.holds[0] == Hold(stack[1], Reason.AGE, Holder.ARCHIVE)


def test_the_hard_cap_names_the_archive_when_it_loses():
    """If the hard cap drops a segment that is not archived, ``loses`` names the archive."""
    config = a_config("consume", retention_hard_bytes=150)
    verdict = plan(a_stack(0), config, {"r": 5}, archived_end=0)
    assert verdict.drops[0].loses == ("r", "archive")


def test_an_expired_active_segment_is_to_be_sealed():
    """The active segment is rolled if all its records and all segments before it expired."""
    config = a_config(retention_ms=1000)
    stack = a_stack(2000)
    assert plan(stack, config, active=an_active(stack, age_ms=1001)).roll_active
    assert not plan(stack, config, active=an_active(stack, age_ms=1000)).roll_active
    young = a_stack(0)
    assert not plan(young, config, active=an_active(young, age_ms=5000)).roll_active


def test_an_empty_active_segment_is_left_alone():
    """An empty active segment is not rolled."""
    config = a_config(retention_ms=1000)
    assert not plan([], config, active=an_active([], size_bytes=0, age_ms=5000)).roll_active


def test_being_consumed_does_not_cut_the_active_segment():
    """Consumption does not roll the active segment; otherwise every batch could get its own."""
    assert not plan([], a_config("consume"), {"r": 10}).roll_active


def test_an_expired_active_segment_waits_for_its_readers():
    """With consume,delete, an expired active segment is rolled only after all readers passed it."""
    config = a_config("consume,delete", retention_ms=1000)
    active = an_active([], age_ms=5000)
    verdict = plan([], config, {"r": 9}, active=active)
    assert not verdict.roll_active
    assert verdict.holds == (Hold(active, Reason.AGE, Holder.READERS, ("r",)),)
    assert plan([], config, {"r": 10}, active=active).roll_active


def test_records_deleted_to_the_end_of_the_active_segment_are_really_deleted():
    """If the log start is at the log end, the active segment is rolled so it can be dropped."""
    assert plan([], a_config("compact"), log_start=10).roll_active


def test_a_segment_without_timestamps_ages_from_its_creation():
    """A segment without timestamps, such as one emptied by compaction, ages from its creation."""
    stack = [replace(a_stack(5000)[0], newest_ms=-1)]
    assert reasons(plan(stack, a_config(retention_ms=1000))) == [(0, Reason.AGE)]
    assert reasons(plan(stack, a_config(retention_ms=6000))) == []


def test_the_watermark_is_the_slowest_reader_or_the_log_start():
    """The watermark is the slowest reader's offset, or the log start without readers."""
    assert watermark({"a": 7, "b": 3}, 1) == 3
    assert watermark({}, 1) == 1
