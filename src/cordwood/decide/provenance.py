"""The three headers that record where a routed record came from.

They follow the record's own headers. An audit uses them to check that every offset of the ingress
topic occurs once, either in a route or among the dead letters (which use ``dlq.*`` headers).
"""

from __future__ import annotations

from typing import Final

SOURCE_TOPIC: Final = "src.topic"
SOURCE_PARTITION: Final = "src.partition"  # decimal digits
SOURCE_OFFSET: Final = "src.offset"  # decimal digits
