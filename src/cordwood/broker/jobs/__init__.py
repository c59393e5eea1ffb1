"""What Spark jobs ask of the broker: deliveries, swaps, bundles, replays, bindings."""
