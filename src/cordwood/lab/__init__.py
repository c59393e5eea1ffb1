"""Demo, scenarios and load test: optional, imported by nothing the broker runs."""
