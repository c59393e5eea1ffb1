"""Load test arithmetic: shares, batch sizes, rates and percentiles."""

from hypothesis import given
from hypothesis import strategies as st

from cordwood.lab.loadtest.results import BATCH_BYTES, Load, Results, make_values


@given(records=st.integers(1, 100_000), size=st.integers(1, 10**6), clients=st.integers(1, 64))
def test_shares_are_whole_batches_but_for_one(records, size, clients):
    """Every record belongs to one client, and all shares but one consist of full batches."""
    load = Load(records=records, size_bytes=size, clients=clients)
    shares = load.shares()
    assert sum(shares) == records
    assert len(shares) == clients
    assert min(shares) >= 0
    assert {share % load.batch_records for share in shares} <= {0, records % load.batch_records}
    assert max(shares) - min(shares) < 2 * load.batch_records


@given(size=st.integers(1, 10**7))
def test_batches_are_neither_empty_nor_huge(size):
    """A batch has at least one record, and more only if they fit in ``BATCH_BYTES``."""
    count = Load(records=1, size_bytes=size).batch_records
    assert count == 1 or count * size <= BATCH_BYTES


def figures(waits, seconds=2.0):
    return Results(
        workload="w", client="c", records=1000, size_bytes=100, seconds=seconds, waits_s=waits
    )


def test_rates_are_over_the_whole_run():
    """Rates are records and value bytes divided by the duration of the whole run."""
    assert figures([]).records_per_s == 500
    assert figures([]).bytes_per_s == 50_000


def test_a_percentile_is_a_wait_that_happened():
    """A percentile is one of the measured waits, without interpolation."""
    found = figures([float(n) for n in range(1000, 0, -1)])
    assert [found.wait_s(share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert figures([3.0]).wait_s(0.999) == 3.0
    assert figures([]).wait_s(0.5) is None


@given(size=st.integers(1, 4096))
def test_values_have_the_size_asked_for(size):
    """Values have the requested size and are the same in every run."""
    values = make_values(size)
    assert {len(value) for value in values} == {size}
    assert values == make_values(size)
