"""Replay: read dead letters, rewrite them with SQL and append them to a topic."""
