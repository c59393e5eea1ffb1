"""Parses the topics in a consumer's metadata; reads only the prefix that all versions share.

The members of a group of protocol type ``consumer`` define these bytes among themselves. The topics
matter when offsets are deleted: a cursor on a topic that a member subscribes to is kept.
"""

from __future__ import annotations

import struct


def parse_subscription(metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics, or ``None`` if the bytes are not a consumer subscription.

    Layout: version i16, then topics as an i32 count of (i16 length, UTF-8 bytes).
    """
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0:
            return None
        topics, position = [], 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            end = position + 2 + length
            if length < 0 or end > len(metadata):
                return None
            topics.append(metadata[position + 2 : end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
