"""``format("cordwood")`` for writes: rows become records, exactly once."""
