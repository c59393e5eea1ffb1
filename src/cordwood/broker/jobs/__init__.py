"""Services that Spark jobs call: deliveries, compaction swaps, archive bundles, replays, routes."""
