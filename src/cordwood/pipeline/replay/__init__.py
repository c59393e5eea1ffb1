"""Replay of dead letters."""
