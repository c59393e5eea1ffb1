"""Laws of settings that change at run time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.config import BrokerConfig, changed
from cordwood.decide.dynamic_settings import (
    ALL_BROKERS,
    THIS_BROKER,
    DynamicLevels,
    combine,
    plan_level,
    usable_levels,
)
from cordwood.errors import RequestError

TEXTS = {
    "num.partitions": st.integers(1, 99).map(str),
    "scrub.interval.ms": st.integers(1, 99).map(str),
    "segment.entries": st.integers(1, 99).map(str),
}
SETTINGS = st.fixed_dictionaries({}, optional=TEXTS)
CHANGES = st.fixed_dictionaries(
    {}, optional={name: st.none() | values for name, values in TEXTS.items()}
)
REFUSED = {"durability": "os", "num.partitions": "0", "no.such": "1"}


@given(SETTINGS, SETTINGS, SETTINGS)
def test_this_broker_comes_before_all_brokers_and_both_before_the_start(started, for_all, for_this):
    """Each setting has the value of the first level that sets it."""
    started_with = changed(BrokerConfig(), started)
    expected = changed(BrokerConfig(), {**started, **for_all, **for_this})
    assert combine(started_with, DynamicLevels(for_all, for_this)) == expected


@given(SETTINGS, SETTINGS, CHANGES, st.sampled_from([ALL_BROKERS, THIS_BROKER]))
def test_a_change_touches_one_level_and_can_be_loaded_again(for_all, for_this, changes, level):
    """None removes, a text sets, the other level stays; what was stored is usable as it is."""
    before = DynamicLevels(for_all, for_this)
    after = plan_level(BrokerConfig(), before, level, changes)
    other = THIS_BROKER if level == ALL_BROKERS else ALL_BROKERS
    assert after.of(other) == before.of(other)
    expected = {**before.of(level), **changes}
    assert after.of(level) == {name: text for name, text in expected.items() if text is not None}
    loaded, problems = usable_levels(BrokerConfig(), lambda _kind, name: after.of(name))
    assert (loaded, problems) == (after, [])


@given(SETTINGS, st.sampled_from(sorted(REFUSED)))
def test_one_refused_setting_refuses_them_all(changes, name):
    """Nothing of a request with a refused setting is planned; stored, it alone is left out."""
    asked = {**changes, name: REFUSED[name]}
    with pytest.raises(RequestError, match=name):
        plan_level(BrokerConfig(), DynamicLevels(), THIS_BROKER, asked)
    kept, problems = usable_levels(
        BrokerConfig(), lambda _kind, level: asked if level == THIS_BROKER else {}
    )
    del asked[name]
    assert (kept.this_broker, len(problems)) == (asked, 1)
