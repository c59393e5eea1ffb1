"""Compaction: jobs that rewrite sealed segments without superseded records."""

from cordwood.pipeline.compact.compaction_pass import PassLimits
from cordwood.pipeline.compact.job import ANSWER_S, CompactionSchedule, on_spark, run_due

__all__ = ["ANSWER_S", "CompactionSchedule", "PassLimits", "on_spark", "run_due"]
