"""Properties of compaction plans that hold for any list of segments."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import TopicConfig, changed
from cordwood.decide.compaction import (
    Candidate,
    CleanerState,
    CompactionInputs,
    Horizon,
    explain,
    plan_compaction,
    plan_groups,
    plan_kept_bytes,
)
from support.stacks import NOW_MS, a_segment, an_active

ages = st.integers(-1000, 10_000)


@st.composite
def compaction_inputs(draw) -> CompactionInputs:
    sealed, offset = [], draw(st.integers(0, 50))
    for _ in range(draw(st.integers(0, 6))):
        span = draw(st.integers(1, 20))
        sealed.append(
            a_segment(
                offset,
                offset + span,
                size_bytes=draw(st.integers(0, 300)),
                age_ms=draw(ages),
                records=draw(st.integers(0, span)),
            )
        )
        offset += span
    active = an_active(sealed, size_bytes=draw(st.sampled_from([0, 100])), age_ms=draw(ages))
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": draw(st.sampled_from([0, 0.3, 0.5, 1])),
        "min.compaction.lag.ms": draw(st.sampled_from([0, 500, 5000])),
        "max.compaction.lag.ms": draw(st.sampled_from([-1, 100, 9000])),
    }
    horizons = draw(st.lists(st.tuples(st.integers(NOW_MS - 99, NOW_MS + 99), st.integers(0, 90))))
    return CompactionInputs(
        sealed=tuple(sealed),
        active=active,
        log_start=sealed[0].base_offset if sealed else active.base_offset,
        last_stable=draw(st.integers(0, active.end_offset)),
        state=CleanerState(
            clean_end=draw(st.sampled_from([0, 10_000, *(s.end_offset for s in sealed)])),
            passes=1,
            horizons=tuple(Horizon(*pair) for pair in horizons),
        ),
        readers=draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 100))),
        config=changed(TopicConfig(), config),
        now_ms=NOW_MS,
    )


@given(compaction_inputs())
def test_a_plan_takes_a_run_of_whole_sealed_segments_from_the_start(made):
    """A plan takes clean, then dirty segments without a gap.

    Dirty segments end at or before the last stable offset.
    """
    plan = plan_compaction(made)
    taken = plan.clean + plan.dirty
    assert taken == made.sealed[: len(taken)]
    assert all(segment.end_offset <= made.last_stable for segment in plan.dirty)
    assert made.active not in taken
    assert 0 <= plan.ratio <= 1


@given(compaction_inputs(), st.booleans())
def test_planned_again_after_a_pass_nothing_is_due(made, demand):
    """A pass leaves its range clean and no horizon due, so a plan at the same time is empty."""
    plan = plan_compaction(made, demand=demand)
    if plan.rule is None:
        return
    left = tuple(h for h in made.state.horizons if h.due_ms > made.now_ms)
    after = replace(
        made, state=replace(made.state, clean_end=max(plan.bound, plan.clean_end), horizons=left)
    )
    again = plan_compaction(after)
    assert again.dirty == ()
    assert again.rule is None


@given(compaction_inputs())
def test_a_plan_is_due_for_one_reason_or_waits_for_one(made):
    """A plan has either a rule or a reason to wait, never both, and both can be explained."""
    plan = plan_compaction(made)
    assert (plan.rule is None) != (plan.wait is None)
    assert explain(plan, made).startswith("due" if plan.rule else "not due")


@given(compaction_inputs())
def test_nothing_becomes_due_by_time_alone_before_next_due(made):
    """An unchanged log is not due before ``next_due_ms``."""
    plan = plan_compaction(made)
    if plan.rule is not None:
        return
    moments = [NOW_MS + 1, NOW_MS + 60, NOW_MS + 600, NOW_MS + 6000, NOW_MS + 60_000]
    for now_ms in moments:
        if plan.next_due_ms is None or now_ms < plan.next_due_ms:
            assert plan_compaction(replace(made, now_ms=now_ms)).rule is None


candidate_lists = st.lists(
    st.tuples(st.integers(0, 120), st.booleans(), st.integers(0, 100)), max_size=12
).map(
    lambda rows: [
        Candidate(i * 10, i * 10 + 10, size, changed, plan_kept_bytes(size, 100, removed))
        for i, (size, changed, removed) in enumerate(rows)
    ]
)


@given(candidate_lists, st.integers(1, 200), st.booleans(), st.integers(1, 4))
def test_groups_are_the_segments_in_order_and_none_passes_a_limit(rows, limit, thorough, tasks):
    """Grouping keeps every segment in order and exceeds neither the segment nor the task limit."""
    groups = plan_groups(rows, limit, thorough=thorough, tasks=tasks)
    share = max(limit, -(-sum(c.size_bytes for c in rows) // tasks))
    assert [candidate for group in groups for candidate in group] == rows
    assert all(groups)
    for group in groups:
        assert len(group) == 1 or sum(c.kept_bytes for c in group) <= limit
        assert len(group) == 1 or sum(c.size_bytes for c in group) <= share
