"""Replay: read dead letters, rewrite them with SQL and append them to a topic."""

from cordwood.pipeline.replay.job import run_replay
from cordwood.pipeline.replay.letters import Replay, preview, run_expressions

__all__ = ["Replay", "preview", "run_expressions", "run_replay"]
