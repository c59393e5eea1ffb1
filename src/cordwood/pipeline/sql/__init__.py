"""SQL over topics."""

from cordwood.pipeline.sql.views import TopicViews, stream_rows

__all__ = ["TopicViews", "stream_rows"]
