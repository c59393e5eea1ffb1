"""``format("cordwood")`` for writes: rows become records, exactly once.

Exports what needs no Spark; ``sink.sink`` defines the writer classes that Spark calls.
"""

from cordwood.pipeline.sink.options import SinkOptions, check_columns, parse_sink_options

__all__ = ["SinkOptions", "check_columns", "parse_sink_options"]
