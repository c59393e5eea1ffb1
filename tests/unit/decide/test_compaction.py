"""Compaction plans: when a log is due, what a pass reads, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.config import KEEP_ALL, MINUTE_MS, TopicConfig, changed
from cordwood.decide.compaction import (
    BatchAction,
    Candidate,
    CleanerState,
    CompactionInputs,
    Horizon,
    Rule,
    Wait,
    due_first,
    encode_state,
    explain,
    is_kept,
    is_past,
    parse_state,
    plan_batch,
    plan_compaction,
    plan_groups,
    plan_kept_bytes,
    plan_retry,
    plan_swaps,
    watermark,
)
from support.stacks import NOW_MS, a_stack, an_active

COMPACTED = changed(TopicConfig(), {"cleanup.policy": "compact"})


def inputs_of(
    *ages_ms, clean_end=0, settings=None, active_age_ms=0, state=None, readers=None, **changes
):
    """Return inputs with sealed segments of ten offsets and 100 bytes each, of these ages."""
    sealed = a_stack(*ages_ms)
    active = an_active(sealed, age_ms=active_age_ms)
    state = state or CleanerState(clean_end=clean_end, passes=1 if clean_end else 0)
    made = CompactionInputs(
        sealed=tuple(sealed),
        active=active,
        log_start=0,
        last_stable=active.end_offset,
        state=state,
        readers=readers or {},
        config=changed(COMPACTED, settings or {}),
        now_ms=NOW_MS,
    )
    return replace(made, **changes)


# --- range and ratio ------------------------------------------------------------------------


def test_the_active_segment_is_in_neither_term_of_the_ratio():
    """The dirty ratio counts only sealed segments, however large the active one is."""
    plan = plan_compaction(inputs_of(0, 0, clean_end=10))
    assert (plan.clean_bytes, plan.dirty_bytes, plan.ratio) == (100, 100, 0.5)


def test_the_ratio_must_be_above_the_limit_not_at_it():
    """The dirty ratio must exceed the limit, as in Kafka."""
    assert plan_compaction(inputs_of(0, 0, clean_end=10)).wait is Wait.RATIO
    assert plan_compaction(inputs_of(0, 0, 0, clean_end=10)).rule is Rule.RATIO


def test_a_topic_without_compact_is_never_due():
    """A topic without the compact policy is never compacted, not even on demand."""
    plain = inputs_of(0, 0, config=TopicConfig())
    assert plan_compaction(plain).wait is Wait.POLICY
    assert plan_compaction(plain, demand=True).rule is None


def test_a_log_that_is_all_active_is_not_due():
    """The active segment is never compacted, and the plan gives that as the reason."""
    plan = plan_compaction(inputs_of())
    assert (plan.rule, plan.wait, plan.bound) == (None, Wait.ACTIVE, 0)


def test_an_empty_log_is_clean():
    """An empty log is clean and not due."""
    empty = inputs_of(active=an_active([], size_bytes=0))
    assert plan_compaction(empty, demand=True).wait is Wait.CLEAN


def test_the_segment_with_the_first_undecided_offset_is_left_whole():
    """A pass takes whole segments and none that reaches past the last stable offset."""
    plan = plan_compaction(inputs_of(0, 0, 0, last_stable=25))
    assert (plan.bound, len(plan.dirty)) == (20, 2)


def test_an_open_transaction_in_the_first_dirty_segment_blocks_until_it_is_decided():
    """An open transaction in the first dirty segment blocks compaction until it ends."""
    assert plan_compaction(inputs_of(0, 0, last_stable=5)).wait is Wait.UNDECIDED
    assert plan_compaction(inputs_of(0, 0, last_stable=30)).rule is Rule.RATIO


def test_segments_younger_than_min_lag_are_held_back_until_they_are_older():
    """Segments younger than min.compaction.lag.ms are not compacted and not in the ratio."""
    lag = {"min.compaction.lag.ms": "1000"}
    plan = plan_compaction(inputs_of(5000, 500, settings=lag))
    assert (plan.bound, plan.dirty_bytes) == (10, 100)
    young = plan_compaction(inputs_of(500, settings=lag))
    assert (young.wait, young.next_due_ms) == (Wait.YOUNG, NOW_MS + 500)
    assert plan_compaction(inputs_of(1000, settings=lag)).rule is Rule.RATIO


def test_min_lag_of_zero_holds_nothing_back():
    """With a min.compaction.lag.ms of 0 no segment is held back, even with future timestamps."""
    assert plan_compaction(inputs_of(-(10**9))).rule is Rule.RATIO


def test_max_lag_forces_a_pass_whatever_the_ratio():
    """A log is due once its oldest dirty record exceeds max.compaction.lag.ms, at any ratio."""
    settings = {"max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "1"}
    waiting = plan_compaction(inputs_of(999, settings=settings))
    assert (waiting.rule, waiting.wait) == (None, Wait.RATIO)
    assert plan_compaction(inputs_of(1000, settings=settings)).rule is None
    assert plan_compaction(inputs_of(1001, settings=settings)).rule is Rule.MAX_LAG


def test_a_timestamp_from_the_future_does_not_hold_max_lag_off():
    """A timestamp in the future does not delay a pass that max.compaction.lag.ms forces."""
    settings = {"max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "1"}
    (segment,) = a_stack(5000)
    ahead = replace(segment, first_ms=NOW_MS + 10**9, newest_ms=NOW_MS + 10**9)
    assert plan_compaction(inputs_of(0, settings=settings, sealed=(ahead,))).rule is Rule.MAX_LAG


def test_next_due_is_the_moment_max_lag_passes():
    """``next_due_ms`` is the first millisecond at which max.compaction.lag.ms makes the log due."""
    settings = {"max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "1"}
    plan = plan_compaction(inputs_of(400, settings=settings))
    assert plan.next_due_ms == NOW_MS + 601
    later = inputs_of(400, settings=settings, now_ms=plan.next_due_ms)
    assert plan_compaction(later).rule is Rule.MAX_LAG
    assert plan_compaction(replace(later, now_ms=later.now_ms - 1)).rule is None


def test_an_idle_topic_says_when_its_active_segment_will_be_cut():
    """For an idle topic, ``next_due_ms`` is the time at which its active segment is rolled."""
    settings = {"max.compaction.lag.ms": str(10 * MINUTE_MS)}
    plan = plan_compaction(inputs_of(settings=settings, active_age_ms=MINUTE_MS))
    assert plan.next_due_ms == NOW_MS + 9 * MINUTE_MS


@pytest.mark.parametrize("clean_end", [1000, 5])
def test_a_clean_end_outside_the_log_is_reset_to_the_log_start(clean_end):
    """A clean end outside the log is reset to the log start, so everything counts as dirty."""
    sealed = a_stack(0, 0)[1:]
    lost = inputs_of(0, 0, sealed=tuple(sealed), log_start=10, clean_end=clean_end)
    plan = plan_compaction(lost)
    assert (plan.clean_end, plan.is_reset, plan.dirty) == (10, True, tuple(sealed))


def test_a_log_start_or_clean_end_inside_the_active_segment_is_not_due():
    """A log start or a clean end inside the active segment is valid; the log is not due."""
    deleted = inputs_of(sealed=(), active=an_active(a_stack(0)), log_start=15)
    assert plan_compaction(deleted).rule is None
    assert plan_compaction(inputs_of(0, clean_end=15)).rule is None


def test_gaps_at_the_ends_of_segments_do_not_stall_the_clean_end():
    """A pass reaches up to the base offset of the next segment, even across a gap."""
    first, second = a_stack(0, 0)
    plan = plan_compaction(inputs_of(0, 0, sealed=(replace(first, records=1), second)))
    assert plan.bound == 20


# --- rules ----------------------------------------------------------------------------------


def test_a_due_horizon_makes_a_clean_log_due():
    """A tombstone whose delete horizon has passed makes a clean log due."""
    state = CleanerState(clean_end=10, passes=1, horizons=(Horizon(NOW_MS, 3),))
    assert plan_compaction(inputs_of(0, state=state)).rule is Rule.HORIZON
    early = replace(state, horizons=(Horizon(NOW_MS + 1, 3),))
    plan = plan_compaction(inputs_of(0, state=early))
    assert (plan.rule, plan.next_due_ms) == (None, NOW_MS + 1)


def test_a_due_horizon_waits_for_every_registered_reader():
    """A delete horizon waits for all registered readers, and the plan names those it waits for."""
    state = CleanerState(clean_end=10, passes=1, horizons=(Horizon(NOW_MS, 3),))
    waiting = plan_compaction(inputs_of(0, state=state, readers={"slow": 3, "quick": 9}))
    assert (waiting.rule, waiting.held_by) == (None, ("slow",))
    assert "slow" in explain(waiting, inputs_of(0, state=state, readers={"slow": 3}))
    assert plan_compaction(inputs_of(0, state=state, readers={"slow": 4})).rule is Rule.HORIZON


def test_demand_takes_what_is_clean_too():
    """A pass on demand also takes clean segments."""
    assert plan_compaction(inputs_of(0, clean_end=10), demand=True).rule is Rule.DEMAND


def test_a_partition_given_out_is_not_due_again():
    """A partition with a running pass is not due, not even on demand."""
    running = inputs_of(0, is_running=True)
    assert plan_compaction(running).wait is Wait.RUNNING
    assert plan_compaction(running, demand=True).rule is None


def test_a_quarantined_partition_is_tried_again_when_its_time_has_come():
    """A quarantined partition is due again at its retry time, or immediately on demand."""
    state = CleanerState(failures=1, retry_ms=NOW_MS + 5, error="bad bytes")
    resting = inputs_of(0, state=state)
    plan = plan_compaction(resting)
    assert plan.wait is Wait.QUARANTINED
    assert "bad bytes" in explain(plan, resting)
    assert plan_compaction(replace(resting, now_ms=NOW_MS + 5)).rule is Rule.RATIO
    assert plan_compaction(resting, demand=True).rule is Rule.DEMAND


def test_retries_come_later_each_time_up_to_an_hour():
    """The pause doubles with each failure, up to one hour."""
    pauses = [plan_retry(failures, 0) for failures in range(1, 60)]
    assert pauses[:3] == [MINUTE_MS, 2 * MINUTE_MS, 4 * MINUTE_MS]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60 * MINUTE_MS


def test_the_most_dirty_comes_first_and_what_is_not_due_not_at_all():
    """Due partitions are ordered by dirty ratio, highest first, as in Kafka."""
    plans = {
        "a": plan_compaction(inputs_of(0, 0, 0, clean_end=10)),
        "b": plan_compaction(inputs_of(0, 0, 0)),
        "c": plan_compaction(inputs_of(0, clean_end=10)),
    }
    assert due_first(plans) == ["b", "a"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (inputs_of(0), "ratio 1.000 is above"),
        (inputs_of(0, 0, clean_end=10), "ratio 0.500 is not above"),
        (inputs_of(), "active segment, which is never compacted"),
        (inputs_of(), "may be due in 7 days"),
        (inputs_of(0, last_stable=0), "open transaction"),
        (inputs_of(0, settings={"min.compaction.lag.ms": "9"}), "min.compaction.lag.ms 9"),
        (inputs_of(0, config=TopicConfig()), "cleanup.policy does not include compact"),
    ],
)
def test_explain_says_which_rule_decides(made, words):
    """``explain`` names the rule that decided the plan."""
    assert words in explain(plan_compaction(made), made)


# --- groups ---------------------------------------------------------------------------------


def candidates(*sizes, changed=True):
    return [Candidate(i * 10, i * 10 + 10, size, changed, size) for i, size in enumerate(sizes)]


def sizes_of(groups):
    return [[candidate.size_bytes for candidate in group] for group in groups]


def test_neighbours_are_grouped_up_to_segment_bytes_in_order():
    """Neighbouring segments form groups of at most segment_bytes; a larger one is its own group."""
    groups = plan_groups(candidates(40, 50, 20, 90, 200, 5), 100)
    assert sizes_of(groups) == [[40, 50], [20], [90], [200], [5]]


def test_segments_are_merged_by_what_a_pass_leaves_of_them():
    """Groups are sized by the bytes that remain after the pass.

    Ten segments that keep a tenth of their bytes become one; Kafka would leave ten small ones.
    """
    tenth = [each._replace(kept_bytes=10) for each in candidates(*[100] * 10)]
    assert sizes_of(plan_groups(tenth, 100)) == [[100] * 10]
    half = [each._replace(kept_bytes=50) for each in candidates(*[100] * 10)]
    assert sizes_of(plan_groups(half, 100)) == [[100, 100]] * 5


def test_a_group_is_no_more_than_a_tasks_share_of_what_there_is_to_read():
    """With several tasks, a group holds at most one task's share of the bytes to read."""
    tenth = [each._replace(kept_bytes=10) for each in candidates(*[100] * 10)]
    assert sizes_of(plan_groups(tenth, 100, tasks=2)) == [[100] * 5, [100] * 5]
    small = [each._replace(kept_bytes=1) for each in candidates(*[5] * 10)]
    assert sizes_of(plan_groups(small, 100, tasks=2)) == [[5] * 10], "too little to share"


def test_what_a_pass_leaves_is_expected_by_the_share_of_records_that_stay():
    """The bytes kept are estimated from the share of records kept, rounded up."""
    assert plan_kept_bytes(1000, 10, 9) == 100
    assert plan_kept_bytes(1001, 10, 9) == 101
    assert plan_kept_bytes(1000, 10, 0) == 1000
    assert plan_kept_bytes(61, 0, 0) == 61
    assert plan_kept_bytes(1000, 10, 10) == 0


def test_a_swap_takes_neighbours_and_not_too_many_at_once():
    """A swap takes only adjacent segments, and a limited number of them."""
    assert plan_swaps([(0, 2), (2, 3), (5, 6)]) == [[(0, 2), (2, 3)], [(5, 6)]]
    singles = [(number, number + 1) for number in range(130)]
    assert [len(swap) for swap in plan_swaps(singles)] == [64, 64, 2]


def test_tiny_limits_give_single_segments():
    """A limit below every segment's size puts each segment in its own group."""
    assert sizes_of(plan_groups(candidates(5, 5, 5), 1)) == [[5], [5], [5]]


def test_groups_are_as_few_as_fit_and_as_even_as_so_few_can_be():
    """Groups are as few as possible and then as even as possible, because each is one task."""
    assert sizes_of(plan_groups(candidates(*[12] * 10), 100)) == [[12] * 5, [12] * 5]
    assert sizes_of(plan_groups(candidates(10, 10, 70, 30), 100)) == [[10, 10, 70], [30]]


def test_a_group_never_spans_more_offsets_than_an_index_can_hold():
    """A group never spans more offsets than an index can represent."""
    wide = [Candidate(0, 2**31 - 1, 1, True, 1), Candidate(2**31 - 1, 2**31, 1, True, 1)]
    assert len(plan_groups(wide, 100)) == 2
    narrow = [Candidate(1, 2**31 - 1, 1, True, 1), Candidate(2**31 - 1, 2**31, 1, True, 1)]
    assert len(plan_groups(narrow, 100)) == 1


def test_emptied_segments_do_merge():
    """Adjacent empty segments are merged into one group."""
    assert sizes_of(plan_groups(candidates(0, 0, 61, 0), 100)) == [[0, 0, 61, 0]]


def test_a_full_clean_segment_is_not_copied_for_a_small_neighbour():
    """A large clean segment is not copied to merge a small neighbour, except in a thorough pass."""
    mixed = [*candidates(60, changed=False), Candidate(10, 20, 5, True, 5)]
    assert sizes_of(plan_groups(mixed, 100)) == [[60], [5]]
    assert sizes_of(plan_groups(mixed, 100, thorough=True)) == [[60, 5]]


# --- records and batches --------------------------------------------------------------------

KEPT = {"is_aborted": False, "has_key": True, "is_newest": True, "is_tombstone": False,
        "is_past": False}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"is_newest": False}, False),
        ({"has_key": False}, True),
        ({"has_key": False, "is_newest": False}, True),
        ({"has_key": False, "is_tombstone": True, "is_past": True}, True),
        ({"has_key": False, "is_aborted": True}, False),
        ({"is_aborted": True}, False),
        ({"is_tombstone": True}, True),
        ({"is_tombstone": True, "is_past": True}, False),
        ({"is_past": True}, True),
    ],
)
def test_a_record_stays_if_it_is_the_newest_of_its_key(change, kept):
    """Compaction keeps the newest record of each key and all records without a key.

    It removes aborted records, and tombstones whose time has passed.
    """
    assert is_kept(**{**KEPT, **change}) is kept


def test_a_tombstone_goes_at_its_horizon_and_after_the_last_reader():
    """A tombstone is removed after its horizon and after every registered reader has passed it."""
    assert is_past(5, 0, 5, 1)
    assert not is_past(6, 0, 5, 1)
    assert not is_past(5, 1, 5, 1)
    assert not is_past(None, 0, 5, 1)


def test_without_registered_readers_nobody_is_waited_for():
    """Without registered readers the watermark is past every offset."""
    assert watermark({}) == KEEP_ALL
    assert watermark({"a": 5, "b": 3}) == 3


@pytest.mark.parametrize(
    ("kept", "needed", "has", "wants", "outcome"),
    [
        (0, False, False, False, BatchAction.DROP),
        (0, True, True, False, BatchAction.EMPTY),
        (2, False, False, False, BatchAction.KEEP),
        (2, False, False, True, BatchAction.HORIZON),
        (2, False, True, True, BatchAction.KEEP),
    ],
)
def test_what_becomes_of_a_batch(kept, needed, has, wants, outcome):
    """A batch is dropped, reduced to its header, kept, or given a horizon if it has none."""
    found = plan_batch(kept=kept, is_needed=needed, has_horizon=has, wants_horizon=wants)
    assert found is outcome


# --- state ----------------------------------------------------------------------------------


def test_the_state_survives_json_and_unknown_fields_of_a_later_version():
    """The state survives JSON encoding, and unknown fields are ignored."""
    state = CleanerState(clean_end=7, passes=2, horizons=(Horizon(1, 2), Horizon(3, 4)))
    assert parse_state({**encode_state(state), "tomorrow": 1}) == state


@pytest.mark.parametrize("bad", [{"clean_end": "7"}, {"clean_end": True}, {"horizons": [[1]]}])
def test_a_state_that_cannot_be_is_refused(bad):
    """A state with invalid fields is rejected."""
    with pytest.raises((ValueError, TypeError)):
        parse_state(bad)
