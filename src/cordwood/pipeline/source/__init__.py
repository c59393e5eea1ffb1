"""``format("cordwood")`` for reads: topics as DataFrames, batch and stream."""
