"""Options that several commands share: addresses, offsets, Spark."""
