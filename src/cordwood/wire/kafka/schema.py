"""The APIs we serve and their versions: the one table behind dispatch, ApiVersions and the docs.

Which versions, and why these, is in ``docs/protocols.md``. An API is advertised only when every
version in its range is answered, with one exception that Kafka makes too: Produce is advertised
from version 0 although 3 is the first served, because old librdkafka sends its batches uncompressed
to a broker that does not list the versions in which it learnt about codecs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cordwood.wire.kafka.layout import LAST_VERSION, MessageType
from cordwood.wire.kafka.messages import fetch, metadata, offsets, produce

NEVER: Final = LAST_VERSION + 1
"""As ``flexible_version``: no version of this API has compact lengths and tags."""

API_VERSIONS: Final = 18
PRODUCE: Final = 0
UNSUPPORTED_VERSION: Final = 35


class Api(NamedTuple):
    """One API: its versions, and the messages that go to and fro."""

    key: int
    name: str
    first_version: int
    last_version: int
    flexible_version: int  # the first with compact lengths, tags and the longer headers
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
        """The first version ApiVersions tells of."""
        return 0 if self.key == PRODUCE else self.first_version


APIS: Final = (
    Api(0, "Produce", 3, 11, 9, produce.ProduceRequest, produce.ProduceResponse),
    Api(1, "Fetch", 4, 12, 12, fetch.FetchRequest, fetch.FetchResponse),
    Api(2, "ListOffsets", 1, 7, 6, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    Api(3, "Metadata", 0, 12, 9, metadata.MetadataRequest, metadata.MetadataResponse),
    Api(18, "ApiVersions", 0, 4, 3, metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
)

API_BY_KEY: Final[dict[int, Api]] = {api.key: api for api in APIS}
_API_BY_MESSAGE: Final[dict[type[Any], Api]] = {
    message: api for api in APIS for message in (api.request, api.response)
}


def api_of(message_type: type[Any]) -> Api:
    """The API a request or response class belongs to."""
    return _API_BY_MESSAGE[message_type]


def api_table() -> list[tuple[str, int, int, int]]:
    """What is advertised: (name, key, first version, last version), by key."""
    return [(api.name, api.key, api.advertised_version, api.last_version) for api in APIS]


def api_versions(error_code: int = 0) -> metadata.ApiVersionsResponse:
    """The answer to ApiVersions: the table, and no features."""
    ranges = [metadata.ApiVersionRange(key, first, last) for _, key, first, last in api_table()]
    return metadata.ApiVersionsResponse(error_code, ranges)
