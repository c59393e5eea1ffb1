"""The APIs and versions we serve: one table for dispatch, ApiVersions and the docs.

``docs/protocols.md`` says why these versions. An API is advertised only if every version in its
range is served, with one exception that Kafka makes too: Produce is advertised from version 0
although 3 is the first served. Old librdkafka sends its batches uncompressed to a broker that does
not list the versions in which each codec was introduced.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, NamedTuple

from cordwood.protocol.kafka.layout import LAST_VERSION, MessageType
from cordwood.protocol.kafka.messages import (
    acls,
    commits,
    configs,
    consumer_groups,
    fetch,
    groups,
    metadata,
    offsets,
    placement,
    produce,
    quorum,
    topics,
    transactions,
)

NEVER: Final = LAST_VERSION + 1
"""As ``flexible_version``: no version of this API has compact lengths and tags."""

API_VERSIONS: Final = 18
PRODUCE: Final = 0
UNSUPPORTED_VERSION: Final = 35


class KafkaApi(NamedTuple):
    """One API: its versions, its request and its response."""

    key: int
    name: str
    first_version: int
    last_version: int
    flexible_version: int  # the first with compact lengths, tags and tagged headers
    request: MessageType
    response: MessageType

    def is_served(self, version: int) -> bool:
        """Whether we decode and answer this version."""
        return self.first_version <= version <= self.last_version

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tag sections."""
        return version >= self.flexible_version

    @property
    def advertised_version(self) -> int:
        """The first version that ApiVersions advertises."""
        return 0 if self.key == PRODUCE else self.first_version


# key, name, first and last version served, first flexible version, module of its messages
_ROWS: Final = (
    (0, "Produce", 3, 13, 9, produce),
    (1, "Fetch", 4, 18, 12, fetch),
    (2, "ListOffsets", 1, 11, 6, offsets),
    (3, "Metadata", 0, 13, 9, metadata),
    (8, "OffsetCommit", 2, 10, 8, commits),
    (9, "OffsetFetch", 1, 10, 6, commits),
    (10, "FindCoordinator", 0, 6, 3, groups),
    (11, "JoinGroup", 0, 9, 6, groups),
    (12, "Heartbeat", 0, 4, 4, groups),
    (13, "LeaveGroup", 0, 5, 4, groups),
    (14, "SyncGroup", 0, 5, 4, groups),
    (15, "DescribeGroups", 0, 6, 5, groups),
    (16, "ListGroups", 0, 5, 3, groups),
    (18, "ApiVersions", 0, 5, 3, metadata),
    (19, "CreateTopics", 2, 7, 5, topics),
    (20, "DeleteTopics", 1, 6, 4, topics),
    (21, "DeleteRecords", 0, 2, 2, topics),
    (22, "InitProducerId", 0, 5, 2, transactions),
    (23, "OffsetForLeaderEpoch", 2, 4, 4, offsets),
    (24, "AddPartitionsToTxn", 0, 3, 3, transactions),
    (25, "AddOffsetsToTxn", 0, 4, 3, transactions),
    (26, "EndTxn", 0, 4, 3, transactions),
    (27, "WriteTxnMarkers", 1, 2, 1, transactions),
    (28, "TxnOffsetCommit", 0, 4, 3, commits),
    (29, "DescribeAcls", 1, 3, 2, acls),
    (30, "CreateAcls", 1, 3, 2, acls),
    (31, "DeleteAcls", 1, 3, 2, acls),
    (32, "DescribeConfigs", 1, 4, 4, configs),
    (33, "AlterConfigs", 0, 2, 2, configs),
    (34, "AlterReplicaLogDirs", 1, 2, 2, placement),
    (35, "DescribeLogDirs", 1, 5, 2, topics),
    (37, "CreatePartitions", 0, 3, 2, topics),
    (42, "DeleteGroups", 0, 2, 2, groups),
    (43, "ElectLeaders", 0, 2, 2, placement),
    (44, "IncrementalAlterConfigs", 0, 1, 1, configs),
    (45, "AlterPartitionReassignments", 0, 1, 0, placement),
    (46, "ListPartitionReassignments", 0, 0, 0, placement),
    (47, "OffsetDelete", 0, 0, NEVER, commits),
    (55, "DescribeQuorum", 0, 2, 0, quorum),
    (60, "DescribeCluster", 0, 2, 0, metadata),
    (61, "DescribeProducers", 0, 0, 0, transactions),
    (65, "DescribeTransactions", 0, 0, 0, transactions),
    (66, "ListTransactions", 0, 2, 0, transactions),
    (68, "ConsumerGroupHeartbeat", 0, 1, 0, consumer_groups),
    (69, "ConsumerGroupDescribe", 0, 1, 0, consumer_groups),
    (74, "ListConfigResources", 0, 1, 0, configs),
    (75, "DescribeTopicPartitions", 0, 0, 0, metadata),
)


def _api(row: tuple[int, str, int, int, int, ModuleType]) -> KafkaApi:
    """Build the API of a row; its message classes are found by Kafka's names."""
    key, name, first, last, flexible, family = row
    request, response = getattr(family, f"{name}Request"), getattr(family, f"{name}Response")
    return KafkaApi(key, name, first, last, flexible, request, response)


APIS: Final = tuple(map(_api, _ROWS))
API_BY_KEY: Final[dict[int, KafkaApi]] = {api.key: api for api in APIS}
_API_BY_MESSAGE: Final[dict[type[Any], KafkaApi]] = {
    message: api for api in APIS for message in (api.request, api.response)
}


def api_of(message_type: type[Any]) -> KafkaApi:
    """Return the API of a request or response class."""
    return _API_BY_MESSAGE[message_type]


def api_table() -> list[tuple[str, int, int, int]]:
    """Return what is advertised: (name, key, first version, last version), by key."""
    return [(api.name, api.key, api.advertised_version, api.last_version) for api in APIS]


def api_versions(error_code: int = 0) -> metadata.ApiVersionsResponse:
    """Return the answer to ApiVersions: the table, and no features."""
    ranges = [metadata.ApiVersionRange(key, first, last) for _, key, first, last in api_table()]
    return metadata.ApiVersionsResponse(error_code, ranges)
