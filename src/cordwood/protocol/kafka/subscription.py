"""Parses the topics that a consumer subscribes to, from the metadata of its JoinGroup.

The members of a group of protocol type ``consumer`` define these bytes among themselves. To the
coordinator they are opaque, and fields of later versions are not read here. The topics matter when
offsets are deleted: a cursor on a topic that a member subscribes to is kept.
"""

from __future__ import annotations

from struct import Struct

from cordwood.errors import BadMessage
from cordwood.protocol.kafka.primitives import DECODE_FAULTS, Buffer

_HEAD = Struct(">hi")  # version, number of topics
_LENGTH = Struct(">h")


def parse_subscription(data: Buffer) -> tuple[str, ...]:
    """Parse the topics of a ConsumerProtocolSubscription; all versions begin the same."""
    view = memoryview(data)
    topics: list[str] = []
    try:
        version, count = _HEAD.unpack_from(view)
        position = _HEAD.size
        if version < 0 or count < 0:
            raise ValueError(f"version {version} with {count} topics")
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(view, position)
            stop = position + _LENGTH.size + size
            if size < 0 or stop > len(view):
                raise ValueError(f"a topic name of {size} bytes")
            topics.append(str(view[position + _LENGTH.size : stop], "utf-8"))
            position = stop
    except DECODE_FAULTS as error:
        raise BadMessage(f"consumer subscription of {len(view)} bytes: {error}") from error
    return tuple(topics)
