"""Which topics and columns a query's text names."""

from __future__ import annotations

import pytest

from cordwood.pipeline.statement import find_columns, find_topics

TOPICS = ["orders", "orders.eu", "order", "o-1", "dead"]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("select * from orders", ["orders"]),
        ("SELECT * FROM Orders o", ["orders"]),
        ("select * from `orders.eu` e, `o-1` f", ["o-1", "orders", "orders.eu"]),
        ("select orders.key from orders", ["orders"]),
        ("select 'dead' from order", ["order"]),
        ("select 1", []),
    ],
)
def test_topics_are_found_by_whole_names(query, named):
    """Not inside other names or texts; a name before a dot may be a topic's column."""
    assert find_topics(query, TOPICS) == named


def test_only_named_columns_are_decoded():
    """A text column needs the bytes it comes from."""
    assert find_columns("select key_text, offset from t") == ("key", "offset")
    assert find_columns("select count(*) from t") == ("offset",)
    assert find_columns("select Value from t where `partition` = 1") == ("value", "partition")


@pytest.mark.parametrize(
    "query",
    ["select * from t", "select t.* from t", "table t", "select 1 from t natural join u"],
)
def test_all_columns_are_decoded_when_it_cannot_be_told(query):
    """Better slow than wrong."""
    assert len(find_columns(query)) == 8
