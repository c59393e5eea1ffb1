"""The lag of a streaming query, from the progress that Spark reports."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from cordwood.spark import lag


def a_query(*sources):
    return SimpleNamespace(lastProgress={"sources": list(sources)} if sources else None)


def test_lag_is_what_the_last_batch_left_unread():
    """Lag is the difference between latest and end offset by partition.

    A partition that the batch did not know counts from offset 0.
    """
    end, latest = {"t": {"0": 7}}, {"t": {"0": 10, "1": 4}}
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    assert lag(a_query(source)) == {"t-0": 3, "t-1": 4}
    assert lag(a_query({"endOffset": end, "latestOffset": latest})) == {"t-0": 3, "t-1": 4}


def test_a_query_without_a_batch_yet_has_no_lag_to_tell():
    """A query without a batch, or with a source that reports no offsets, has no lag."""
    assert lag(a_query()) == {}
    assert lag(a_query({"endOffset": None, "latestOffset": None})) == {}
