"""Properties of every retention plan, for any segments, policy and readers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import KEEP_ALL, TopicConfig
from cordwood.decide.retention import Reason, plan_retention
from cordwood.model import NO_TIMESTAMP, SegmentState
from support.stacks import NOW_MS, a_segment

POLICIES = st.frozensets(st.sampled_from(["delete", "compact", "consume"]))
LIMITS = st.one_of(st.just(KEEP_ALL), st.integers(0, 600))


@st.composite
def partitions(draw):
    """Generate sealed segments, an active segment, readers, a log start offset and settings."""
    sealed, base = [], draw(st.integers(0, 20))
    for _ in range(draw(st.integers(0, 6))):
        end = base + draw(st.integers(1, 10))
        segment = a_segment(
            base, end, size_bytes=draw(st.integers(1, 200)), age_ms=draw(st.integers(-50, 500))
        )
        if draw(st.booleans()):
            segment = replace(segment, newest_ms=draw(st.sampled_from([NO_TIMESTAMP, NOW_MS])))
        sealed.append(segment)
        base = end
    width = draw(st.integers(0, 5))
    active = a_segment(
        base,
        base + width,
        size_bytes=width * 10,
        age_ms=draw(st.integers(0, 500)),
        state=SegmentState.ACTIVE,
    )
    config = TopicConfig(
        cleanup_policy=draw(POLICIES),
        retention_ms=draw(LIMITS),
        retention_bytes=draw(LIMITS),
        retention_hard_bytes=draw(LIMITS),
        retention_hard_ms=draw(LIMITS),
    )
    readers = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, base + width)))
    log_start = draw(st.integers(0, base + width))
    archived_end = draw(st.one_of(st.just(KEEP_ALL), st.integers(0, base + width)))
    return sealed, active, readers, log_start, config, archived_end


def plan_of(case):
    sealed, active, readers, log_start, config, archived_end = case
    return plan_retention(
        sealed,
        active,
        readers,
        log_start=log_start,
        config=config,
        now_ms=NOW_MS,
        archived_end=archived_end,
    )


def apply_plan(case, plan):
    """Apply a plan as the store does: drop segments, advance the log start, roll if asked."""
    sealed, active, readers, log_start, config, archived_end = case
    sealed = sealed[len(plan.drops) :]
    if plan.roll_active:
        sealed = [*sealed, replace(active, state=SegmentState.SEALED)]
        active = a_segment(
            active.end_offset, active.end_offset, size_bytes=0, state=SegmentState.ACTIVE
        )
    return sealed, active, readers, plan.log_start(log_start), config, archived_end


@given(partitions())
def test_plan_apply_plan_again_is_empty(case):
    """Once a plan is applied, the next one drops only the segment that the first rolled."""
    first = plan_of(case)
    after = apply_plan(case, first)
    second = plan_of(after)
    assert len(second.drops) == int(first.roll_active)
    assert not second.roll_active
    third = plan_of(apply_plan(after, second))
    assert third.drops == ()
    assert not third.roll_active


@given(partitions())
def test_drops_are_the_oldest_run(case):
    """A plan drops the oldest segments, and the log start offset never moves back."""
    sealed, active, _, log_start, _, _ = case
    plan = plan_of(case)
    assert [drop.segment for drop in plan.drops] == sealed[: len(plan.drops)]
    assert active not in [drop.segment for drop in plan.drops]
    assert plan.log_start(log_start) >= log_start


@given(partitions())
def test_consume_never_takes_what_a_registered_reader_has_not_passed(case):
    """Only hard limits drop unread segments, and they name every reader that loses records."""
    _, _, readers, _, config, archived_end = case
    for drop in plan_of(case).drops:
        behind = {name for name, at in readers.items() if at < drop.segment.end_offset}
        if drop.reason is Reason.LOG_START:
            continue
        assert behind <= set(drop.loses)
        if drop.reason not in {Reason.HARD_CAP, Reason.HARD_AGE}:
            assert drop.segment.end_offset <= archived_end
            if "consume" in config.cleanup_policy:
                assert readers
                assert not behind


@given(partitions())
def test_the_hard_cap_holds_after_a_plan(case):
    """Sealed segments remain only if the total size is within the cap."""
    sealed, active, _, _, config, _ = case
    kept = sealed[len(plan_of(case).drops) :]
    total = active.size_bytes + sum(segment.size_bytes for segment in kept)
    assert not kept or total <= config.retention_hard_bytes


@given(partitions())
def test_no_oldest_segment_is_past_the_hard_age_after_a_plan(case):
    """The oldest sealed segment that remains is younger than ``retention.hard.ms``."""
    sealed, _, _, _, config, _ = case
    for oldest in sealed[len(plan_of(case).drops) :][:1]:
        newest_ms = oldest.newest_ms if oldest.newest_ms != NO_TIMESTAMP else oldest.created_ms
        assert NOW_MS - newest_ms <= config.retention_hard_ms


@given(partitions())
def test_a_held_segment_is_dropped_once_nothing_holds_it(case):
    """Once all readers have passed and the archive is complete, every held segment is dropped."""
    sealed, active, readers, log_start, config, _ = case
    plan = plan_of(case)
    held = {hold.segment.base_offset for hold in plan.holds} - {active.base_offset}
    passed = dict.fromkeys(readers or ["anyone"], active.end_offset)
    freed = plan_of((sealed, active, passed, log_start, config, KEEP_ALL))
    assert held <= {drop.segment.base_offset for drop in freed.drops}
