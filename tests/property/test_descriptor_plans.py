"""The plan divides file descriptors between connections and the log before any is opened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.decide.descriptors import (
    LIMIT_MIN,
    RESERVED,
    TAIL_DESCRIPTORS,
    plan_descriptors,
)

LIMITS = st.integers(LIMIT_MIN, 1 << 21)
WANTED = st.integers(1, 1 << 22)


@given(LIMITS, WANTED)
def test_all_shares_together_fit_the_limit(limit, wanted):
    """For any limit, the shares and the reserve add up to the limit."""
    plan = plan_descriptors(limit, wanted)
    log = plan.readers + plan.tails * TAIL_DESCRIPTORS
    assert plan.connections + log + RESERVED == limit


@given(LIMITS, WANTED)
def test_the_log_and_connections_both_have_a_share(limit, wanted):
    """Connections keep up to three quarters of the limit, and the log keeps a minimum."""
    plan = plan_descriptors(limit, wanted)
    assert plan.tails >= 2
    assert plan.readers >= 4
    assert plan.connections >= min(wanted, (limit - RESERVED) * 3 // 4)


@given(LIMITS, WANTED)
def test_a_higher_limit_takes_nothing_from_anybody(limit, wanted):
    """Raising ``ulimit -n`` never reduces a share."""
    less, more = plan_descriptors(limit, wanted), plan_descriptors(limit * 2, wanted)
    assert more.readers >= less.readers
    assert more.tails >= less.tails
    assert more.connections >= min(less.connections, wanted)
