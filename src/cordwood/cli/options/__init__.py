"""Options that commands share: addresses, offsets, Spark."""
