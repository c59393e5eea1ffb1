"""Demo, scenarios and load test: optional, never imported by the broker."""
