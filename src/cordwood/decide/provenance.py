"""Where a routed record came from: three headers that travel with it, whoever reads it later.

They come after the record's own headers. An audit balances the books by them: every offset of the
ingress topic is found once in a route, or once among the dead letters (there as ``dlq.*``).
"""

from __future__ import annotations

from typing import Final

SOURCE_TOPIC: Final = "src.topic"
SOURCE_PARTITION: Final = "src.partition"  # in digits
SOURCE_OFFSET: Final = "src.offset"  # in digits
