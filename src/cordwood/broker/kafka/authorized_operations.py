"""The operations a client is told it may perform: all of them, as there is no authorizer.

A reply carries them as a bit field, one bit for each of Kafka's operation codes, and only if the
request asked for them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from cordwood.protocol.kafka.messages.metadata import OPERATIONS_UNASKED


class Operation(IntEnum):
    """Kafka's operation codes."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bit_field(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
ON_TOPIC: Final = _bit_field(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    *_CONFIGS,
)
ON_GROUP: Final = _bit_field(Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_CONFIGS)
ON_CLUSTER: Final = _bit_field(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)


def authorized(operations: int, *, is_asked: bool) -> int:
    """Return the field for a reply: ``operations``, or the mark that they were not asked for."""
    return operations if is_asked else OPERATIONS_UNASKED
